"""Removes orphans: stored payloads that nothing points to. A worker leaves a group's payload behind if it dies between
storing the group and completing its task, and partial rollouts of tasks that are no longer under way are left behind.

- A group's payload is removed if its task is trained, or is in replay with another payload: no completion that is under
  way can then still be accepted with it. In every other place of an open task the payload stays, however old it is.
- A partial rollout is removed if its task is in neither tasks nor retry. Whoever drops one has noted its objects as
  unwanted, and those are removed at once; the sweep finds the others, of workers that died before they reported them.
- A payload is removed only after two sweeps have found it an orphan, in case Redis was set back between them. An object
  whose name is not that of a payload is junk, and is removed as well.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue.caller import Caller
from echo_queue.queue.payloads import GROUP_REFERENCE, PARTIALS, PARTIALS_KEY, REPLAY, folder, partials_folder

log = logging.getLogger(__name__)

SCAN = 1000
STORED_GROUP = re.compile(rb"replay (\d{1,18}-\d{1,18}) .* in store", re.DOTALL)
"""The place of a group that lies in the store. A worker's user may write other words into `open`."""
UNDER_WAY = (b"tasks ", b"retry ")


def orphans(keys: Iterable[str], places: Mapping[str, bytes], pointed: Set[str]) -> set[str]:
    """Returns those of `keys`, which lie under `replay/`, that may be removed.

    `places`: the place of each open task, from `open`. `pointed`: the payloads that entries of replay point to. Both
    were read after `keys` was listed.
    """
    undecided = {folder(task) for task, place in places.items() if not place.startswith(b"replay ")}
    return {
        key
        for key in keys
        if key not in pointed and not (GROUP_REFERENCE.fullmatch(key) and key[: key.rindex("/") + 1] in undecided)
    }


def idle_partials(keys: Iterable[str], places: Mapping[str, bytes]) -> set[str]:
    """Returns those of `keys`, which lie under `partials/`, whose tasks are in neither tasks nor retry."""
    wanted = {partials_folder(task) for task, place in places.items() if place.startswith(UNDER_WAY)}
    return {key for key in keys if key[: key.rfind("/") + 1] not in wanted}


class Sweeper:
    """Finds and removes orphans. The learner's housekeeper calls `sweep` now and then, from one thread."""

    def __init__(self, caller: Caller, store: ObjectStore) -> None:
        self._caller = caller
        self._store = store
        self._seen: set[str] = set()

    def sweep(self) -> int:
        """Removes the payloads that were orphans in the sweep before and still are; returns how many."""
        keys = [stored.key for stored in self._store.list(REPLAY)]
        partials = [stored.key for stored in self._store.list(PARTIALS)]
        places = self._places() if keys or partials else {}
        found = orphans(keys, places, self._pointed(places)) | idle_partials(partials, places)
        gone, self._seen = found & self._seen, found - self._seen
        if gone:
            self._store.delete(sorted(gone))
            log.info("removed %d stored groups and partial rollouts that nothing pointed to", len(gone))
        return len(gone)

    def remove_partials(self, keys: Sequence[str], deadline_s: float) -> None:
        """Removes these objects, as far as they are partial rollouts. Raises `ServiceError` after `deadline_s`."""
        if known := sorted(filter(PARTIALS_KEY.fullmatch, keys)):
            self._store.delete(known, deadline_s)

    def remove_idle_partials(self, keys: Sequence[str]) -> None:
        """Removes those of `keys`, which lie under `partials/`, whose tasks are not under way: the run has ended."""
        self._store.delete(sorted(idle_partials(keys, self._places())))

    def _places(self) -> dict[str, bytes]:
        """Returns the place of each open task, by task id."""

        def read() -> dict[str, bytes]:
            rows: Any = self._caller.client.hscan_iter(self._caller.keys.open, count=SCAN)
            return {task.decode("utf-8", "replace"): place for task, place in rows}

        return dict(self._caller.persist("places", read))

    def _pointed(self, places: Mapping[str, bytes]) -> set[str]:
        """Returns the payloads that entries of replay point to.

        An entry that has gone since `places` was read adds nothing: its task has left replay, usually because it is
        trained.
        """
        entries = [group[1] for place in places.values() if (group := STORED_GROUP.fullmatch(place))]
        found = set[str]()

        def read(some: list[bytes]) -> list[Any]:
            pipe = self._caller.client.pipeline(transaction=False)
            for entry in some:
                pipe.xrange(self._caller.keys.replay, entry, entry)
            return pipe.execute()

        for start in range(0, len(entries), SCAN):
            some = entries[start : start + SCAN]
            for rows in self._caller.persist("pointed", partial(read, some), some):
                found |= {words[b"ref"].decode("utf-8", "replace") for _, words in rows if b"ref" in words}
        return found
