"""The load of this machine, whose processors bound what a laboratory can show, and may be used by others."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

IDLE = slice(3, 5)
"""The fields of /proc/stat's first line for idle time and for waiting on a disk."""


@dataclass(frozen=True)
class Moment:
    at_s: float
    busy_ticks: int
    all_ticks: int


def now() -> Moment:
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return Moment(time.monotonic(), sum(ticks) - sum(ticks[IDLE]), sum(ticks))


def busy_share(since: Moment) -> float:
    """Returns the share of all processors' time that was used since then, by any process."""
    moment = now()
    return (moment.busy_ticks - since.busy_ticks) / max(1, moment.all_ticks - since.all_ticks)


def business() -> str:
    """Describes the machine's processors and load, for the reader of a figure."""
    return f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}"


def quiet_share(seconds: float = 1.0) -> float:
    """Measures the share that other processes use, while the laboratory is idle."""
    before = now()
    time.sleep(seconds)
    return busy_share(before)
