"""Prefetches the parts that the learner announces of the version under way, if its route begins at the staged weights.

- An announced part is never applied: the transport keeps it until the version's signed manifest names the same part.
- An announcement is believed if it is signed with the pinned key and describes the part at its own place. One that is
  not believed ends the prefetching of its route, with one warning.
- Parts of a version that never comes are dropped again.
- `update` waits for nothing but one read from Redis. The transport prefetches only while it has no other work.
"""

import logging

from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import Announced, PublishedWeights
from echo_queue.weights.manifest import Announcement, Part, folder_name
from echo_queue.weights.reader import Damaged
from echo_queue.weights.signatures import SignatureVerifier
from workers.weights.staging import Stage
from workers.weights.transport import Prefetch, WeightTransport

log = logging.getLogger(__name__)

FIX = "its weights are fetched once their version is published; check which other process writes to this Redis"


class Prefetcher:
    """Starts and drops prefetches, in the weight watcher's thread.

    `deadline_s`: a route is given up if nothing more of it is announced for so long.
    """

    def __init__(
        self,
        queue: PublishedWeights,
        verifier: SignatureVerifier,
        stage: Stage,
        transport: WeightTransport,
        deadline_s: float,
    ) -> None:
        self._queue, self._verifier, self._stage, self._transport = queue, verifier, stage, transport
        self._deadline_s = deadline_s
        self._route = ""
        self._next = 0
        """The place of the first part whose fetching has not begun."""
        self._prefetch: Prefetch | None = None
        self._ended = False
        """True once nothing more of this route is to be prefetched."""

    def update(self, announced: Announced | None) -> None:
        """Prefetches the new parts in `announced`, the queue's present announcement, if any."""
        route = announced.route if announced is not None else ""
        if route != self._route:
            self._drop()
            self._route, self._next, self._ended = route, 0, False
        elif self._prefetch is not None and self._prefetch.over.is_set():
            self._drop()
        if announced is None or self._ended or announced.last < self._next or not self._begins_here(route):
            return
        try:
            self._fetch(self._read(announced))
        except ServiceError as error:
            log.warning("%s is not prefetched: %s", route, error)
            self._ended = True

    def _drop(self) -> None:
        """Drops the present prefetch: its parts have been fetched, or its version never comes."""
        if self._prefetch is not None:
            self._prefetch, self._ended = None, True
            self._transport.drop_prefetched()

    def _begins_here(self, route: str) -> bool:
        """Returns whether the route's name says that it begins at the staged weights; the documents prove it."""
        have = self._stage.have
        return route.partition("/")[2] in (folder_name(None), *((folder_name(have[0]),) if have is not None else ()))

    def _read(self, announced: Announced) -> dict[int, Part]:
        """Returns the new parts by their places. Raises `ServiceError` for an announcement that is not believed."""
        documents = self._queue.announced_parts(announced, self._next)
        return {place: self._open(announced.route, place, document) for place, document in documents.items()}

    def _open(self, route: str, place: int, document: bytes) -> Part:
        where = f"announced part {place} of {route}"
        announcement = Announcement.decode(self._verifier.open(document, where), where)
        if (announcement.run, announcement.route, announcement.place) != (self._queue.run, route, place):
            what = f"is part {announcement.place} of {announcement.route} of run {announcement.run!r:.80}"
            raise Damaged(Problem(where, what, FIX))
        have = self._stage.have
        if have is not None and announcement.version <= have[0]:
            raise Damaged(Problem(where, f"leads to nothing newer than {have[0]}", FIX))
        if announcement.base is not None and have != (announcement.base, announcement.base_root):
            raise Damaged(Problem(where, "begins at other weights than those of its base", FIX))
        return announcement.part

    def _fetch(self, parts: dict[int, Part]) -> None:
        if not parts:
            return
        if self._prefetch is None:
            self._prefetch = self._transport.prefetch(self._route, tuple(parts.values()), self._deadline_s)
        else:
            self._prefetch.add(parts.values())
        if self._prefetch is not None:
            self._next = max(parts) + 1
