"""Bound and pace as pure functions: the reference for what `library/backlog.lua` decides on the server."""


def within_bound(oldest: int, published: int | None) -> bool:
    """Bound: a group is admitted only if the oldest version that may generate it is already published."""
    return published is not None and oldest <= published


def within_window(untrained: int, batch: int, window: float) -> bool:
    """Pace: a group is admitted only while n < w·B."""
    return untrained < window * batch
