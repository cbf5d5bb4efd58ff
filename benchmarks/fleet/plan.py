"""What the workers of a fleet are told, and the files in which they count: read when a worker has been killed, too."""

from dataclasses import dataclass
from pathlib import Path
from struct import Struct

COUNT = Struct("<Q")


@dataclass(frozen=True)
class Plan:
    """`step_s`: an engine's step takes so long at least. `counts`: the folder of the files with what was sampled."""

    trace: Path
    counts: Path
    step_s: float


def prepare(counts: Path, name: str) -> None:
    """To be called before that worker starts."""
    (counts / name).write_bytes(COUNT.pack(0))


def sampled(counts: Path) -> int:
    """Tokens that all workers have sampled so far, the dead included."""
    return sum(int(COUNT.unpack(path.read_bytes())[0]) for path in counts.iterdir())
