"""The part of every rank but rank 0 in publishing: it makes the parts of its share, as rank 0 instructs it.

- The learner's thread hands over the rank's shares, in the order in which rank 0 publishes them, and goes on training.
- Each part is reported to rank 0 once it is stored. What fails is reported as well, and raised by the next `check`.
"""

import logging
from queue import Empty, SimpleQueue

from echo_queue import documents
from echo_queue.checked_thread import CheckedThread
from echo_queue.config import Config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import DeadlineError, Problem
from echo_queue.weights.part_makers import PartMaker, RouteOrder
from learner.model.device import side_stream
from learner.publication.coding_threads import coding_threads
from learner.publication.part_messages import NAME, Instruction, PartReport, report_name
from learner.publication.publish_thread import CLOSE_S, Snapshot
from learner.ranks.team import Team

log = logging.getLogger(__name__)


class PartThread(CheckedThread):
    """Follows rank 0's instructions. The learner's thread calls every public method."""

    def __init__(self, config: Config, store: ObjectStore, team: Team) -> None:
        super().__init__("publish thread")
        self._config, self._store, self._team = config, store, team
        self._handed_over: SimpleQueue[Snapshot] = SimpleQueue()
        self._snapshot: Snapshot | None = None
        """The version that is being published."""
        self._places = range(0)
        """The places of this rank's parts."""

    def hand_over(self, snapshot: Snapshot) -> None:
        """Gives the thread this rank's share of the next version that rank 0 publishes."""
        self.check()
        self._handed_over.put(snapshot)

    def close(self) -> None:
        """Waits until rank 0 needs no more parts, since it ends what is under way; not longer than it would."""
        self.join(CLOSE_S)
        if self.is_alive():
            log.warning("a version is left half published; nothing points to it")

    def work(self) -> None:
        maker, heard = self._maker(self._hear(0)), 1
        while (instruction := self._hear(heard)).kind != "end":
            self._follow(instruction, heard, maker)
            heard += 1

    def _hear(self, number: int) -> Instruction:
        return documents.decode(Instruction, self._team.hear(NAME.format(number)), "rank 0's instruction")

    def _maker(self, begin: Instruction) -> PartMaker:
        return PartMaker(
            self._store,
            self._config.weights,
            chunk_key=bytes.fromhex(begin.chunk_key) if begin.chunk_key else None,
            threads=coding_threads(self._config),
        )

    def _follow(self, instruction: Instruction, number: int, maker: PartMaker) -> None:
        match instruction:
            case Instruction("take"):
                self._snapshot = self._next()
                self._places = self._snapshot.share.places
                maker.take(self._snapshot.share)
            case Instruction("make", route=RouteOrder() as order):
                with side_stream(self._snapshot.ready if self._snapshot else None):
                    self._make(order, number, maker)
            case Instruction("discard"):
                maker.discard()
            case Instruction("keep", changes=changes):
                with side_stream(self._snapshot.ready if self._snapshot else None):
                    maker.keep(changes)
                self._snapshot = None
            case _:
                raise ValueError(f"rank 0 gave the unknown instruction {instruction}")

    def _next(self) -> Snapshot:
        try:
            return self._handed_over.get(timeout=self._team.deadline_s)
        except Empty:
            where, deadline_s = f"learner rank {self._team.rank}", self._team.deadline_s
            what = f"did not come to the version that rank 0 publishes within {deadline_s:g} s"
            raise DeadlineError(Problem(where, what, "see in its log what it waits for")) from None

    def _make(self, order: RouteOrder, number: int, maker: PartMaker) -> None:
        places = iter(self._places)
        try:
            for part in maker.make(order):
                self._team.report(report_name(number, next(places)), documents.encode(PartReport(part)))
        except Exception as error:
            for place in places:  # rank 0 hears of the first that is missing
                self._team.report(report_name(number, place), documents.encode(PartReport.failed(error)))
                break
            raise
