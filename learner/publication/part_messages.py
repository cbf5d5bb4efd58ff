"""The messages of the ranks while they publish a version together: JSON documents.

Rank 0 gives instructions, the same to all; each other rank reports every part once it is stored. A failure is such a
report, never a silence.
"""

from dataclasses import dataclass
from typing import Literal

from echo_queue.errors import EchoQueueError, Problem
from echo_queue.weights.part_makers import RouteOrder, StoredPart
from learner.recovery import rank_report

Kind = Literal["begin", "take", "make", "discard", "keep", "end"]
NAME = "publication {}"
"""The name of each instruction, by its number."""


@dataclass(frozen=True)
class Instruction:
    """The next step of all ranks, as `PartMakers` says; "begin" tells them the chunk key, and "end" is the last one.

    `route`: the one to make. `changes`: how many publications' changes to keep.
    """

    kind: Kind
    route: RouteOrder | None = None
    changes: int = 0
    chunk_key: str | None = None


@dataclass(frozen=True)
class PartReport:
    """`stored`: the part, None if it was left out. `failure`: why it could not be made, and the rank ends."""

    stored: StoredPart | None = None
    failure: Problem | None = None

    @classmethod
    def failed(cls, error: Exception) -> "PartReport":
        """Returns the report of a rank that ends by `error`."""
        return cls(failure=rank_report.failed(error).failure)

    def result(self, rank: int, what: str) -> StoredPart | None:
        """Returns the part. Raises an `EchoQueueError` that names the rank if it could not be made."""
        if self.failure is None:
            return self.stored
        where, cause, fix = self.failure.where, self.failure.what, self.failure.fix
        cause = f"{where}: {cause}" if where else cause
        raise EchoQueueError(Problem(f"learner rank {rank}", f"could not store {what}: {cause}", fix))


def report_name(route: int, place: int) -> str:
    """Returns the name of the report on a part; `route`: the number of the instruction to make its route."""
    return f"{NAME.format(route)}, part {place}"
