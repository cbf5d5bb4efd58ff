"""The protocol of sources of notices, and the two things that a source may report."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class Notice:
    """The machine will be taken away in `within_s` seconds (None: unknown)."""

    why: str
    within_s: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """The machine may soon be taken away."""

    why: str


class NoticeSourceAway(Exception):
    """The source does not answer, or its answer is malformed; it may answer later."""


class NoticeSource(Protocol):
    def poll(self) -> Notice | Recommendation | None:
        """Returns the present notice, if any. It may wait for a change, a minute at most. Raises `NoticeSourceAway`."""


def seconds_until(moment: datetime, at_most: float) -> float:
    """Returns the seconds from now until `moment`, which has a time zone, between 0 and `at_most`.

    The bounds are there because this machine's clock may be wrong.
    """
    return min(max(moment.timestamp() - time.time(), 0.0), at_most)
