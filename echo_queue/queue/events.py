"""Lets each role wait for what concerns it alone: a completion wakes no worker, and an admission not all of them.

- A wait is one blocking read, and ends at its deadline. Whoever waits checks the queue before each wait, so nothing is
  missed: what happens between the check and the wait ends the wait at once.
- A large fleet is not woken by new weights all at once, because the server would answer nobody meanwhile, 25 ms for
  2,000 workers. Its workers look by themselves, each at times of its own.
- An offer goes to one worker. It is lost with a worker that dies with it, so idle workers also look by themselves from
  time to time.
"""

import random
import time
from collections.abc import Callable
from typing import Any

from echo_queue.queue import replies
from echo_queue.queue.caller import Client

BLOCK_S = 2.0
"""The longest single blocking read; a connection's socket timeout must be above it."""
WOKEN_AT_ONCE = 256
"""The most workers that wait for weights by a blocking read."""
LOOKS_PER_S = 2000
"""The looks for new weights of a larger fleet's workers, of all of them together."""


class WeightEvents(Client):
    """Lets a worker's weight watcher wait for what concerns its weights."""

    def wait_for_weights(self, cursor: str, timeout_s: float) -> str:
        """Waits until weights were published or announced, or a learner resumed, after `cursor`; at most `timeout_s`.

        Returns the new cursor. Begin with "0-0". In a fleet of more than `WOKEN_AT_ONCE` workers one learns of it up to
        1.5 · workers / `LOOKS_PER_S` seconds later.
        """
        client, keys = self._caller.client, self._caller.keys
        workers: Any = self._caller.persist("wait_for_weights", lambda: client.zcard(keys.workers))

        def read(block_ms: int | None) -> Any:
            return self._caller.persist(
                "wait_for_weights", lambda: client.xread({keys.weight_events: cursor}, block=block_ms)
            )

        def look(at_most_ms: int) -> Any:
            if not (found := read(None)):
                time.sleep(min(at_most_ms / 1000, random.uniform(0.5, 1.5) * workers / LOOKS_PER_S))
            return found

        return _newest(_until(timeout_s, read if workers <= WOKEN_AT_ONCE else look), cursor)


class Offers(Client):
    """Lets an idle worker wait for tasks."""

    def wait_for_work(self, worker: str, timeout_s: float) -> bool:
        """Blocks until there may be a task for this worker, or `timeout_s`; returns whether there may be one.

        The worker's last lease found none. For each task that comes, one worker wakes: of those that wait, the one that
        has waited longest. If many come at once, some workers wake, and each that leases as many as it wanted wakes
        others for the rest. When the run is finished, all wake.
        """
        client, key = self._caller.client, self._caller.keys.offer(worker)

        def take(block_ms: int) -> Any:
            return self._caller.persist("wait_for_work", lambda: client.blpop([key], timeout=block_ms / 1000))

        return bool(_until(timeout_s, take))


class Arrivals(Client):
    """Lets the learner wait for groups."""

    def wait_for_groups(self, cursor: str, timeout_s: float) -> str:
        """Blocks until a drain may return more than the last one, after `cursor`; at most `timeout_s`.

        That is so once half of the groups that the last drain lacked are ready, or a task was buried. Returns the new
        cursor. Begin with "0-0".
        """
        client, stream = self._caller.client, self._caller.keys.arrivals

        def read(block_ms: int) -> Any:
            return self._caller.persist("wait_for_groups", lambda: client.xread({stream: cursor}, block=block_ms))

        return _newest(_until(timeout_s, read), cursor)


def _until(timeout_s: float, read: Callable[[int], Any]) -> Any:
    """Returns the first answer of `read` that holds anything, else the last. It blocks for the time that it is told."""
    give_up, found = time.monotonic() + timeout_s, None
    while not found and (left_s := give_up - time.monotonic()) > 0:
        found = read(max(1, round(1000 * min(left_s, BLOCK_S))))
    return found


def _newest(streams: Any, cursor: str) -> str:
    """Returns the id of the newest entry that was read from one stream; `cursor` if there was none."""
    return replies.text(streams[0][1][-1][0]) if streams else cursor
