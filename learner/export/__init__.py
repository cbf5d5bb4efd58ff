"""Versions of a run as Hugging Face folders, for whoever uses the model after training (docs/export.md)."""
