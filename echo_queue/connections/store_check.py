"""Compares what a store does with what the promises need of it, by storing one object and removing it.

- Those call it that may write anywhere under the run: services, the learner and `config check`. Workers and submitters
  may write nowhere that they may also read and clean.
- A store must give back what it has just acknowledged, list it, and take objects of the size that the run stores; a
  store that does not is refused. One without put-once weakens one promise, and is said to.
- The table of docs/reliability.md, "What the store must be", has one row for each rule here.
"""

import uuid
from collections.abc import Iterator

from echo_queue.connections.storage.errors import DeniedError
from echo_queue.connections.storage.object_store import MULTIPART_BYTES, MissingObject, ObjectStore
from echo_queue.connections.verdict import Verdict
from echo_queue.errors import Problem, ServiceError

WHERE = "store.url"
LARGEST_BYTES = MULTIPART_BYTES
"""The most that one request brings: larger objects go in parts of this size."""
SECOND = b"the second object of that name"
READ_AFTER_WRITE = "use a store that shows every object as soon as it has acknowledged it, as Amazon S3 does"


def check(store: ObjectStore) -> None:
    """Raises `ServiceError` for a store that loses data, and logs what weakens a promise.

    It stores a small object, since whoever begins may have a slow link; `config check` and `run` try a large one.
    """
    examine(store, len(SECOND)).enforce()


def examine(store: ObjectStore, size: int = LARGEST_BYTES) -> Verdict:
    """Stores an object of `size` bytes, looks at it in every manner in which the run will, and removes it.

    Keys that may not write here yield a warning, because the role that may will look again.
    """
    key = f".probe/{uuid.uuid4().hex}"
    try:
        store.put(key, bytes(size))
    except DeniedError as error:
        fix = "nothing to do if the learner's keys may write there (docs/rights.md): it looks again"
        return Verdict(warnings=(Problem(WHERE, f"could not be tried: {error.problems[0].what}", fix),))
    except ServiceError as error:
        return Verdict(refusals=error.problems)
    try:
        refusals = tuple(_forgets(store, key, size))
    finally:
        store.delete([key])
    if not refusals and store.exists(key):
        refusals = (Problem(WHERE, "an object was there after it had been removed", READ_AFTER_WRITE),)
    return Verdict(refusals, () if store.puts_once else (WITHOUT_PUT_ONCE,))


def _forgets(store: ObjectStore, key: str, size: int) -> Iterator[Problem]:
    """Yields what the store does not give back. The object at `key` has `size` bytes."""
    try:
        if store.size(key) != size:
            yield Problem(WHERE, f"an object of {size} bytes came back with {store.size(key)}", READ_AFTER_WRITE)
        store.put(key, SECOND)
        if store.get(key) != SECOND:
            yield Problem(WHERE, "an object that was replaced came back as it was before", READ_AFTER_WRITE)
    except MissingObject:
        yield Problem(WHERE, "an object was not there right after it had been stored", READ_AFTER_WRITE)
    if all(stored.key != key for stored in store.list(key)):
        yield Problem(WHERE, "an object was not listed right after it had been stored", READ_AFTER_WRITE)


WITHOUT_PUT_ONCE = Problem(
    WHERE,
    "does not heed `If-None-Match: *`, so two learners that publish one version could overwrite each other's manifest",
    "keep to one learner: the lineage, fenced in Redis, then decides; or use a store that puts once, as Amazon S3 does",
)
