"""The plan that the workers of a fleet follow, and the files in which they count, which survive a killed worker."""

from dataclasses import dataclass
from pathlib import Path
from struct import Struct

COUNT = Struct("<Q")


@dataclass(frozen=True)
class Plan:
    """`step_s`: the least duration of an engine's step. `counts`: the folder of the files that count tokens."""

    trace: Path
    counts: Path
    step_s: float


def prepare(counts: Path, name: str) -> None:
    """Makes a worker's count file. Call it before that worker starts."""
    (counts / name).write_bytes(COUNT.pack(0))


def sampled(counts: Path) -> int:
    """Returns the tokens that all workers have sampled so far, killed ones included."""
    return sum(int(COUNT.unpack(path.read_bytes())[0]) for path in counts.iterdir())
