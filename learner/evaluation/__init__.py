"""The rounds of evaluation: when they are due, what becomes of them, and what is kept of them (docs/evaluation.md)."""
