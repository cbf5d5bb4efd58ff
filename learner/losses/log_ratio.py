"""The bound that every loss puts on log-ratios before `exp`."""

LOG_RATIO_LIMIT = 20.0
"""Beyond this limit exp() is meaningless; without it a single absurd token overflows the whole update."""
