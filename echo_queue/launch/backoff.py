"""Decides when a process that keeps ending is started again, and when it is given up.

The functions are pure: the caller keeps count and time.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RestartBackoff:
    """A process that ends is started again after a pause, which doubles with each end in a row."""

    first_pause_s: float
    longest_pause_s: float
    settled_s: float
    """A process that lived longer than this starts its count of ends again."""
    most_ends: int
    """The process is given up at this many ends in a row."""

    def ends_in_a_row(self, before: int, lived_s: float) -> int:
        """Returns the ends in a row, with the end of a life of `lived_s` that followed `before` of them."""
        return 1 if lived_s > self.settled_s else before + 1

    def pause_s(self, ends: int) -> float:
        """Returns the pause before the next start, after `ends` ends in a row."""
        return min(self.first_pause_s * 2.0 ** min(ends - 1, 32), self.longest_pause_s)
