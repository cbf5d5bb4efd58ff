"""Makes a server load weights, and keeps the label under which it serves them.

The label changes before the weights change and again afterwards, so a token drawn in between has neither label.
"""

import secrets
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

from echo_queue.errors import DeadlineError, EchoQueueError, Problem
from echo_queue.records import Version
from workers.engines.http.server import WHERE, Server, ServerAway, ServerRefused

PAUSE_S = 0.2
FRESH = "default"
"""The label of a server that was given no weights since it was started."""

T = TypeVar("T")


class WeightLoader:
    """Loads checkpoints into a server. `label`: that of the weights given; empty while they are unknown."""

    def __init__(self, server: Server) -> None:
        self.label = ""
        self._server = server
        self._ours = secrets.token_hex(8)
        self._numbers = count(1)

    def give(self, version: Version, folder: Path) -> None:
        """Makes the server load `folder`, and checks that it did.

        Raises `ServerAway`, or `ServerRefused` if the server does not take these weights.
        """
        number, self.label = next(self._numbers), ""
        loading, label = f"{self._ours} {number} loading", f"{self._ours} {number} {version}"
        self._server.set_label(loading)
        try:
            self._server.reload(str(folder))
        except ServerRefused as error:
            what = f"{self._server.url} does not take the weights of {folder}: {error.problems[0].what}"
            fix = "start the server with the model that model.base names, where it sees rollout.http.weights_dir"
            raise ServerRefused(Problem(WHERE, what, fix)) from error
        if self._server.label() != loading:
            raise ServerAway(
                Problem(WHERE, f"{self._server.url} was restarted while it loaded", "check the server's log")
            )
        self._server.set_label(label)
        if (found := self._server.label()) != label:
            raise ServerAway(
                Problem(WHERE, f"{self._server.url} serves {found!r} after a load", "check the server's log")
            )
        self.label = label

    def holds(self) -> bool:
        """Returns whether the server still has the weights that it was given.

        Raises `ServerAway`, or `ServerRefused` if another client has loaded weights.
        """
        found = self._server.label()
        if found != FRESH and not found.startswith(self._ours):
            what = f"{self._server.url} was given weights by another client, under the label {found!r}"
            raise ServerRefused(Problem(WHERE, what, "give each worker a server of its own"))
        return found == self.label


def patiently(action: Callable[[], T], deadline_s: float) -> T:
    """Repeats `action` while the server is away. Raises `DeadlineError`, or any other error of `action`."""
    give_up = time.monotonic() + deadline_s
    while True:
        try:
            return action()
        except ServerAway as error:
            if time.monotonic() > give_up:
                raise away_too_long(error, deadline_s) from error
            time.sleep(PAUSE_S)


def away_too_long(error: EchoQueueError, deadline_s: float) -> DeadlineError:
    """Makes the error of a wait that has ended at its deadline. `error`: the last error during the wait."""
    first = error.problems[0]
    return DeadlineError(Problem(first.where, f"{first.what}; not fixed within {deadline_s:g} s", first.fix))
