"""The values in which a submission reports its progress and its result."""

from collections.abc import Callable
from dataclasses import dataclass

from echo_queue.errors import Problem


@dataclass(frozen=True)
class Submitted:
    """A set as the queue knows it. `new` is False if it was submitted before.

    `ignored`: why its source cannot be submitted any more; the set had arrived whole before, and does not need it.
    `held_out`, `components`: the held-out sets, and the sets of other components, that were submitted together with it.
    """

    set: str
    prompts: int
    chunks: int
    new: bool
    ignored: tuple[Problem, ...] = ()
    held_out: "tuple[Submitted, ...]" = ()
    components: "tuple[Submitted, ...]" = ()


@dataclass(frozen=True)
class Progress:
    """The progress of a submission: `scanned` prompts are read and checked, `arrived` of them are in the backlog.

    `waits`: what it waits for, once nothing has arrived for some seconds.
    """

    set: str
    scanned: int
    arrived: int = 0
    failed_chunks: int = 0
    waits: str = ""


Report = Callable[[Progress], None]
"""Receives each report of a submission's progress."""
