"""The plan that the workers of a fleet follow, and the files in which they count, which survive a killed worker."""

from dataclasses import dataclass
from pathlib import Path
from struct import Struct

COUNT = Struct("<QQQ")
"""Tokens sampled, steps of the engine, and microseconds by which steps began too late for its pace."""


@dataclass(frozen=True)
class Plan:
    """`step_s`: the least duration of an engine's step. `counts`: the folder of the files that count tokens."""

    trace: Path
    counts: Path
    step_s: float


def prepare(counts: Path, name: str) -> None:
    """Makes a worker's count file. Call it before that worker starts."""
    (counts / name).write_bytes(COUNT.pack(0, 0, 0))


def sampled(counts: Path) -> int:
    """Returns the tokens that all workers have sampled so far, killed ones included."""
    return sum(found[0] for found in _counts(counts))


def late_share(plan: Plan) -> float:
    """Returns the share of their time that the engines lost because this machine's processors were busy."""
    late_s = sum(found[2] for found in _counts(plan.counts)) / 1e6
    return late_s / max(late_s + plan.step_s * sum(found[1] for found in _counts(plan.counts)), plan.step_s)


def _counts(folder: Path) -> list[tuple[int, ...]]:
    return [COUNT.unpack(path.read_bytes()) for path in folder.iterdir()]
