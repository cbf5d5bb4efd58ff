"""The queue client of a fleet's controller: the moves of `library/fleet.lua`, and the state of the run."""

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Caller
from echo_queue.queue.monitor import RunState
from echo_queue.queue.types import Term, WorkerOrder

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


class FleetQueue(RunState):
    """Leads a fleet as Redis user `controller`, through `library/fleet.lua`, under a name that nobody else has.

    `plan`, `order` and `resign` raise `FencedError` once another controller leads.
    """

    ROLE: ClassVar["Role"] = "controller"

    def __init__(self, caller: Caller, name: str = "") -> None:
        super().__init__(caller)
        self._name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._term = 0

    def lead(self, term_s: float) -> Term:
        """Leads for `term_s`, or goes on to lead, unless another controller does."""
        term = replies.term_of(self._caller.call("lead", self._name, round(1000 * term_s)))
        self._term = term.number
        return term

    def plan(self, document: bytes, wanted: Mapping[str, int]) -> None:
        """Keeps what the leader is about to do, for its successor, and the number of machines wanted of each pool."""
        pools = [word for pool in wanted.items() for word in pool]
        self._caller.call("plan", self._name, self._term, document, *pools)

    def order(self, what: WorkerOrder, workers: Sequence[str]) -> None:
        """Tells workers to rest or to leave. Each hears it with its next heartbeat."""
        if workers:
            within_ms = round(1000 * what.within_s)
            self._caller.call("order", self._name, self._term, what.word, within_ms, *workers)

    def resign(self) -> None:
        """Lets another controller lead at once."""
        self._caller.call("resign", self._name, self._term)

    def pause(self, *, paused: bool) -> None:
        """Makes the fleet's leader order nothing, or again what it finds right. Anyone with the role may."""
        self._caller.call("pause", int(paused))
