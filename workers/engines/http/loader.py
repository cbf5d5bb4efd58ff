"""Gives the server weights, and knows under which label it serves them.

The label changes before the weights do, and again after: a token that was drawn in between has neither.
"""

import secrets
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

from echo_queue.errors import DeadlineError, EchoQueueError, Problem
from echo_queue.records import Version
from workers.engines.http.server import WHERE, Away, Refused, Server

PAUSE_S = 0.2
FRESH = "default"
"""The label of a server that nobody has given weights since it was started."""

T = TypeVar("T")


class Loader:
    """`label`: of what the server has been given; empty while that is not known."""

    def __init__(self, server: Server) -> None:
        self.label = ""
        self._server = server
        self._ours = secrets.token_hex(8)
        self._numbers = count(1)

    def give(self, version: Version, folder: Path) -> None:
        """The server has what is in `folder`, and says so. Raises `Away`, or `Refused` for what it does not take."""
        number, self.label = next(self._numbers), ""
        loading, label = f"{self._ours} {number} loading", f"{self._ours} {number} {version}"
        self._server.set_label(loading)
        try:
            self._server.reload(str(folder))
        except Refused as error:
            what = f"{self._server.url} does not take the weights of {folder}: {error.problems[0].what}"
            fix = "start the server with the model that model.base names, where it sees rollout.http.weights_dir"
            raise Refused(Problem(WHERE, what, fix)) from error
        if self._server.label() != loading:
            raise Away(Problem(WHERE, f"{self._server.url} was restarted while it loaded", "see its own log"))
        self._server.set_label(label)
        if (found := self._server.label()) != label:
            raise Away(Problem(WHERE, f"{self._server.url} serves {found!r} after a load", "see its own log"))
        self.label = label

    def holds(self) -> bool:
        """Whether the server still has what it was given. Raises `Away`, or an error if others have loaded theirs."""
        found = self._server.label()
        if found != FRESH and not found.startswith(self._ours):
            what = f"{self._server.url} was given weights by somebody else, under the label {found!r}"
            raise Refused(Problem(WHERE, what, "give each worker a server of its own"))
        return found == self.label


def patiently(act: Callable[[], T], deadline_s: float) -> T:
    """Again and again while the server is away. Raises `DeadlineError`, or what else `act` raises."""
    give_up = time.monotonic() + deadline_s
    while True:
        try:
            return act()
        except Away as error:
            if time.monotonic() > give_up:
                raise away_too_long(error, deadline_s) from error
            time.sleep(PAUSE_S)


def away_too_long(error: EchoQueueError, deadline_s: float) -> DeadlineError:
    """`error`: the last of those that made the wait go on."""
    first = error.problems[0]
    return DeadlineError(Problem(first.where, f"{first.what}; not fixed within {deadline_s:g} s", first.fix))
