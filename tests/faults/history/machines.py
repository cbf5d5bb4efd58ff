"""What machines of a fleet say of themselves: that they have begun, beside which others, and that they were ended.

Each writes whole lines to one journal. What a controller believes about them is no part of it.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

JOURNAL = "machines.jsonl"
BEGAN, ENDED = "began", "ended"


@dataclass(frozen=True)
class Caps:
    """The limits that a controller must keep at any instant. `usd_per_hour`: of all pools; `prices`: by pool."""

    machines: int
    usd_per_hour: float
    prices: Mapping[str, float]


@dataclass(frozen=True)
class Machine:
    """A machine that began. `beside`: the pools of all that were alive just then, itself included.

    Their number only ever grows when one begins, so these instants stand for all.
    """

    name: str
    pool: str
    time_s: float
    beside: tuple[str, ...]


@dataclass(frozen=True)
class Machines:
    """All machines of a run, and how often each was told by its place to end."""

    began: tuple[Machine, ...]
    ended: Counter[str]
    caps: Caps


def note(directory: Path, what: str, name: str, pool: str, beside: Sequence[str] = ()) -> None:
    """Writes a line, whole, however this process ends."""
    line = orjson.dumps({"t": time.time(), "what": what, "name": name, "pool": pool, "beside": list(beside)})
    file = os.open(directory / JOURNAL, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    try:
        os.write(file, line + b"\n")
    finally:
        os.close(file)


def read(directory: Path, caps: Caps) -> Machines:
    """Returns what all machines have said."""
    path = directory / JOURNAL
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    began = [
        Machine(line["name"], line["pool"], line["t"], tuple(line["beside"])) for line in lines if line["what"] == BEGAN
    ]
    return Machines(tuple(began), Counter(line["name"] for line in lines if line["what"] == ENDED), caps)
