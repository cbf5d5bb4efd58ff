"""Lets a role wait until something happens in a run, by a cursor into the run's stream of events."""

import time
from collections.abc import Collection
from typing import Any

from echo_queue.queue import replies
from echo_queue.queue.caller import Client

BLOCK_S = 2.0
"""The longest single blocking read; a connection's socket timeout must be above it."""


class Events(Client):
    """Lets a role wait for the run's events instead of polling."""

    def wait_for_event(self, cursor: str, timeout_s: float, kinds: Collection[str] = ()) -> str:
        """Blocks until an event after `cursor` (of one of `kinds`, if given) or `timeout_s`; returns the new cursor.

        Begin with "0-0", and check the queue before each wait: then nothing is missed. Kinds: declared, submitted,
        admitted, completed, advanced, keys_published, announced, published, committed, resumed, returned, buried,
        revived, finished.
        """
        give_up = time.monotonic() + timeout_s
        wanted = {kind.encode() for kind in kinds}
        while (left_s := give_up - time.monotonic()) > 0:
            block_ms = max(1, round(1000 * min(left_s, BLOCK_S)))
            for _, entries in self._events(cursor, block_ms):
                cursor = replies.text(entries[-1][0])
                if not wanted or any(words[b"kind"] in wanted for _, words in entries):
                    return cursor
        return cursor

    def _events(self, cursor: str, block_ms: int) -> Any:
        client, events = self._caller.client, self._caller.keys.events
        return self._caller.persist("wait_for_event", lambda: client.xread({events: cursor}, block=block_ms))
