"""How often the queue is swept, and when a worker with room asks it for more. A simulation keeps to the same."""

SWEEPS_PER_LEASE = 8
"""Twice as often as leases need: time passes for them by at most a quarter of a lease from sweep to sweep."""
LONGEST_PAUSE_S = 1.0
ROOM_SHARE = 4
"""Groups are leased once there is room for 1/4 of the most that may run, because each joining has a cost."""


def sweep_pause_s(lease_s: float) -> float:
    """Returns the seconds between two sweeps."""
    return min(lease_s / SWEEPS_PER_LEASE, LONGEST_PAUSE_S)


def room_for(most: int, running: int) -> int:
    """Returns the number of groups to lease beside those that run, so that `most` do; 0 while few more would fit."""
    free = max(0, most - running)
    return free if free * ROOM_SHARE >= most or not running else 0
