"""What a submission tells while it goes on, and at its end."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Submitted:
    """A set as the queue knows it. `new` is False where it was submitted before."""

    set: str
    prompts: int
    chunks: int
    new: bool


@dataclass(frozen=True)
class Progress:
    """How far a submission is. `scanned` prompts are read and checked, `arrived` of them are in the backlog."""

    set: str
    scanned: int
    arrived: int = 0
    failed_chunks: int = 0


Report = Callable[[Progress], None]
