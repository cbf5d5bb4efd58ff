"""The bound on log-ratios that every loss applies before `exp`."""

LOG_RATIO_LIMIT = 20.0
"""Beyond it exp() has lost all meaning; without a limit one absurd token overflows the whole update."""
