"""The protocol of transports, which bring the parts of routes to this worker.

A transport delivers verified bytes or raises an error; the stage does not know where the bytes came from.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from echo_queue.config import Config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import Caller
from echo_queue.weights.manifest import Part, Route

STORE = "store"
"""The name of the object store among the sources that `WeightTransport.fetched` counts."""


class FetchedPart(Protocol):
    """A part that is on this machine and verified, or on its way."""

    def memory(self) -> memoryview:
        """Returns the part's bytes, read-only; waits until they are whole.

        Raises the error that ended the fetching, which has a deadline.
        """


class Prefetch(Protocol):
    """A route that is fetched while the learner still uploads it."""

    @property
    def over(self) -> threading.Event:
        """An event that is set once nothing more is fetched: the route is whole, was dropped, or has failed."""

    def add(self, parts: Iterable[Part]) -> None:
        """Adds the route's next parts; known ones are ignored. Raises `ServiceError` if there is no room for one."""


class WeightTransport(Protocol):
    """Fetches parts of routes. One thread calls `fetch`, `prefetch` and `drop_prefetched`; any may call the others."""

    @property
    def fetched(self) -> Mapping[str, int]:
        """Bytes fetched since the start, by source; the store's name is `STORE`."""

    def fetch(self, routes: Sequence[Route], deadline_s: float, *, early: bool = False) -> Mapping[str, FetchedPart]:
        """Fetches the parts of `routes` and returns them by key. `deadline_s` counts for each route.

        It returns once all parts are whole. If `early`, it may return at once, with parts that are waited for when they
        are read. Raises `DeadlineError`, `Damaged` if the store's own bytes are wrong, `ServiceError` if there is no
        room, or once the transport is closed. Chunks that have arrived are then kept, and the next call continues from
        there.
        """

    def prefetch(self, route: str, parts: Sequence[Part], deadline_s: float) -> Prefetch | None:
        """Begins to fetch the route named `route`, of which `parts`, at least one, are known.

        Returns None while the transport has other work. The prefetch ends when no part was added for `deadline_s`.
        Raises `ServiceError` if there is no room.
        """

    def drop_prefetched(self, keep: Sequence[Route] = ()) -> None:
        """Drops the prefetched parts and frees their room, except for parts of the routes in `keep`."""

    def retire(self) -> None:
        """Ends the promise to other workers: no further peer may depend on this worker, which will leave."""

    def close(self) -> None:
        """Ends all fetching. A read that is still in progress does not delay the end of the process."""


@dataclass(frozen=True)
class Site:
    """The arguments with which a transport is opened. `secret` is shared by the run's workers; empty: there is none."""

    config: Config
    caller: Caller
    store: ObjectStore
    worker: str
    secret: bytes
