"""The makers of a version's parts on all ranks, as rank 0 sees them: it instructs the others, and hears of each part.

Only messages go between the ranks here, never a collective: all of it happens in publish threads, beside training.
"""

from collections.abc import Iterator

from echo_queue import documents
from echo_queue.weights.layout import Layout, Share
from echo_queue.weights.manifest import route_name
from echo_queue.weights.part_makers import PartMaker, RouteOrder, StoredPart
from learner.publication.part_messages import NAME, Instruction, PartReport, report_name
from learner.ranks.team import Team


class RankedMakers:
    """The part makers of all ranks (`PartMakers`); `own`: that of rank 0.

    `deadline_s`: the longest wait for another rank's next part. `chunk_key`: the run's, if it encrypts.
    """

    def __init__(self, team: Team, own: PartMaker, deadline_s: float, chunk_key: bytes | None) -> None:
        self._team, self._own, self._deadline_s = team, own, deadline_s
        self._told = 0
        """Number of instructions given so far."""
        self._layout: Layout | None = None
        """That of the version taken last."""
        self._tell(Instruction("begin", chunk_key=chunk_key.hex() if chunk_key else None))

    def take(self, share: Share) -> None:
        self._tell(Instruction("take"))
        self._own.take(share)
        self._layout = share.layout

    def make(self, order: RouteOrder) -> Iterator[StoredPart | None]:
        """Does what `PartMakers.make` does. Raises `RankLostError`, or an error that names the rank that failed."""
        number = self._tell(Instruction("make", route=order))
        return self._gathered(number, order, self._own.make(order))

    def discard(self) -> None:
        self._tell(Instruction("discard"))
        self._own.discard()

    def keep(self, changes: int) -> None:
        self._tell(Instruction("keep", changes=changes))
        self._own.keep(changes)

    def close(self) -> None:
        self._tell(Instruction("end"))

    def _gathered(
        self, number: int, order: RouteOrder, own: Iterator[StoredPart | None]
    ) -> Iterator[StoredPart | None]:
        assert self._layout is not None, "nothing was taken"
        for place in range(len(self._layout.parts)):
            rank = self._layout.owner(place, self._team.size)
            yield next(own) if rank == self._team.rank else self._reported(rank, number, place, order)
        next(own, None)  # there is no further part, and its threads end

    def _reported(self, rank: int, number: int, place: int, order: RouteOrder) -> StoredPart | None:
        (report,) = self._team.reports(report_name(number, place), self._deadline_s, [rank])
        found = documents.decode(PartReport, report, "a rank's report")
        return found.result(rank, f"part {place} of {route_name(order.version, order.base)}")

    def _tell(self, instruction: Instruction) -> int:
        """Returns the instruction's number."""
        self._team.tell(NAME.format(self._told), documents.encode(instruction))
        self._told += 1
        return self._told - 1
