"""How busy this machine is: its processors bound what a laboratory on it can show, and others may be using them."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

IDLE = slice(3, 5)
"""Idle and waiting for a disk, of /proc/stat's first line."""


@dataclass(frozen=True)
class Moment:
    at_s: float
    busy_ticks: int
    all_ticks: int


def now() -> Moment:
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return Moment(time.monotonic(), sum(ticks) - sum(ticks[IDLE]), sum(ticks))


def busy_share(since: Moment) -> float:
    """Share of all processors' time that was used since then, by anybody."""
    moment = now()
    return (moment.busy_ticks - since.busy_ticks) / max(1, moment.all_ticks - since.all_ticks)


def business() -> str:
    """For the reader of a figure: what else went on."""
    return f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}"


def quiet_share(seconds: float = 1.0) -> float:
    """Share that others use: measured while the laboratory rests."""
    before = now()
    time.sleep(seconds)
    return busy_share(before)
