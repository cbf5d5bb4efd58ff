"""The interface of transports, which bring the parts of routes to this worker.

- A transport delivers verified bytes or raises; the staging of a version neither knows nor cares where they came from.
- `OPEN` names them all. To add one: write a class with these methods, and the function that opens it, in a module of
  its own; enter it in `OPEN`, in `config.Weights.transport`, and among the transports of `test_transport.py`.
"""

import importlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from echo_queue.config import Config
from echo_queue.queue import Caller
from echo_queue.storage.object_store import ObjectStore
from echo_queue.weights.manifest import Part, Route

STORE = "store"
"""The name of the object store among the sources that `WeightTransport.fetched` counts."""


class FetchedPart(Protocol):
    """A part that is here and verified, or on its way."""

    def memory(self) -> memoryview:
        """Its bytes, to read; waits until they are whole. Raises what the fetching raised; that has a deadline."""


class Prefetch(Protocol):
    """A route that is fetched while the learner still uploads it."""

    @property
    def over(self) -> threading.Event:
        """Set once nothing more of it is fetched: it was fetched whole, dropped, or failed."""

    def add(self, parts: Iterable[Part]) -> None:
        """Parts that come next; known ones are ignored. Raises `ServiceError` if there is no room for one."""


class WeightTransport(Protocol):
    @property
    def fetched(self) -> Mapping[str, int]:
        """Bytes fetched since the start by source; the store is `STORE`."""

    def fetch(self, routes: Sequence[Route], deadline_s: float, *, early: bool = False) -> Mapping[str, FetchedPart]:
        """The parts of `routes` by key; the deadline is that of one route.

        Returns once all are whole; if `early`, perhaps at once, with parts that are waited for when they are read.
        Raises `DeadlineError`, `Damaged` if the store's own bytes are wrong, `ServiceError` if there is no room, or
        once the transport is closed. What has landed then stays, and the next try goes on from there.
        """

    def prefetch(self, route: str, parts: Sequence[Part], deadline_s: float) -> Prefetch | None:
        """Begins to fetch a route, by its name, of which at least one part is known. None while there is other work.

        It ends when nothing was added for `deadline_s`. Raises `ServiceError` if there is no room.
        """

    def drop_prefetched(self, keep: Sequence[Route] = ()) -> None:
        """Gives up what is prefetched, and its room, unless it belongs to one of the routes to keep."""

    def retire(self) -> None:
        """Ends the promise to other workers: this worker will leave, so no further peer may depend on it."""

    def close(self) -> None:
        """Ends all fetching. Nothing that is still on its way holds up the end of the process."""


@dataclass(frozen=True)
class Site:
    """What a transport is opened with. `secret` is shared by the workers of the run; empty: there is none."""

    config: Config
    caller: Caller
    store: ObjectStore
    worker: str
    secret: bytes


OPEN = {"peers": "workers.weights.peers.exchange:open_exchange", "folder": "workers.weights.folder:open_folder"}
"""Name in `weights.transport` → module and function that opens it; a transport that is not used is not imported."""


def open_transport(site: Site) -> WeightTransport:
    module, _, function = OPEN[site.config.weights.transport].partition(":")
    transport: WeightTransport = getattr(importlib.import_module(module), function)(site)
    return transport
