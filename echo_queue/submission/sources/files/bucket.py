"""Objects of a bucket as files of prompts: `s3://BUCKET/KEY`, and `s3://BUCKET/PREFIX/` as a folder.

- An object is read in ranges, which become longer while they follow one another: at any place with little more than
  what is asked for, and from end to end at the rate of the network. No more than one range is in memory.
- The run's own bucket is opened as the store is, with its keys. Any other bucket is opened as the user's other programs
  open it: by the variables AWS_… and the profile that they name, its server's address and region included.
- What a person must mend is a `PromptError`; a server that is away is a `ServiceError`, so a chunk is sent again.
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, cast

from botocore import exceptions as boto

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.errors import (
    DeniedError,
    ExpiredKeysError,
    MissingBucketError,
    NoKeysError,
    ShortObject,
    Unreachable,
    WrongRegionError,
)
from echo_queue.connections.storage.named_bucket import by_environment
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.connections.storage.random_access import RandomAccess
from echo_queue.errors import Problem, PromptError, ServiceError
from echo_queue.submission.sources.files.file import Rows
from echo_queue.submission.sources.files.forms import file_of, folder_of, form_of
from echo_queue.submission.sources.files.stored import READ_BUFFER_BYTES
from echo_queue.submission.sources.source import S3

FIRST_DEADLINE_S = 5.0
"""How long a server may be away when a source is opened; while it is read, the store's own deadline applies."""
MOST_RANGE_BYTES = 8 * READ_BUFFER_BYTES
OBJECT = f"write {S3}BUCKET/KEY, or {S3}BUCKET/PREFIX/ for all files of a folder"
KEYS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, to keys that may list and read there, on this "
    "machine and for the Celery workers"
)
SERVER = "if its server is not Amazon's, set AWS_ENDPOINT_URL_S3"
FIXES: dict[type[ServiceError], tuple[str, str]] = {
    MissingObject: ("it was there before: submit what is there now",) * 2,
    ShortObject: ("it has changed while it was read: submit it again",) * 2,
    MissingBucketError: ("correct the bucket's name", f"correct the bucket's name; {SERVER}"),
    WrongRegionError: ("", "set AWS_REGION to the bucket's own region"),
    DeniedError: ("", KEYS),
    ExpiredKeysError: ("", KEYS),
    NoKeysError: ("", KEYS),
    Unreachable: ("", f"check the network; {SERVER}"),
}
"""What to do about an error in the run's own bucket, and in another one. Where it is empty, the error says so."""


@dataclass(frozen=True)
class Bucket:
    """A bucket, and whether it is the run's own."""

    store: ObjectStore
    own: bool

    @property
    def name(self) -> str:
        return f"{S3}{self.store.endpoint.bucket}"

    @contextmanager
    def told(self, address: str) -> Iterator[None]:
        """Makes an error of the store one that names the address: a `PromptError` if a person must mend it."""
        try:
            yield
        except ServiceError as error:
            kind = ServiceError if isinstance(error, Unreachable) else PromptError
            raise kind(Problem(address, error.problems[0].what, self._fix(error))) from None

    def _fix(self, error: ServiceError) -> str:
        own, other = FIXES.get(type(error), ("", ""))
        return (own if self.own else other) or error.problems[0].fix


@dataclass(frozen=True)
class S3Object:
    """An object of `size` bytes."""

    bucket: Bucket
    key: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.bucket.name}/{self.key}"

    def open(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(Ranges(self), READ_BUFFER_BYTES))

    def read(self, start: int, length: int) -> bytes:
        """Returns bytes start … start + length − 1. Raises `PromptError`; `ServiceError` if the server is away."""
        with self.bucket.told(self.name):
            return self.bucket.store.get_range(self.key, start, length)


class Ranges(RandomAccess):
    """An object as a file, which is read in ranges."""

    def __init__(self, stored: S3Object) -> None:
        super().__init__(stored.size)
        self._stored, self._length = stored, 0
        self._ahead, self._ahead_from = memoryview(b""), 0
        """What was read and not asked for yet, and the place where it begins."""

    def read_at(self, start: int, most: int) -> memoryview:
        """Returns bytes from `start` on. Raises as `S3Object.read` does."""
        if start != self._ahead_from:
            self._ahead, self._length = memoryview(b""), 0
        if not self._ahead and start < self.size:
            self._length = min(max(most, 2 * self._length), max(most, MOST_RANGE_BYTES))
            self._ahead = memoryview(self._stored.read(start, min(self._length, self.size - start)))
        piece, self._ahead = self._ahead[:most], self._ahead[most:]
        self._ahead_from = start + len(piece)
        return piece


def objects_of(address: str, store: StoreEndpoint | None) -> Sequence[Rows]:
    """Returns the file at an address, or the files of a folder: the objects there without a further `/` in their keys.

    `store`: the run's own. Raises `PromptError`; `ServiceError` for a server that is away.
    """
    name, _, key = address.removeprefix(S3).partition("/")
    if not name:
        raise PromptError(Problem("prompts.source", f"{address!r} names no bucket", OBJECT))
    own = store is not None and store.bucket == name
    environment = tuple(sorted((key, value) for key, value in os.environ.items() if key.startswith("AWS_")))
    with _foreseen(address):
        bucket = Bucket(_opened(store if own and store else by_environment(name), os.getpid(), environment), own)
    with bucket.told(address):
        if key.endswith("/") or not form_of(key):
            return _folder(bucket, key)
        if (size := bucket.store.size(key, FIRST_DEADLINE_S)) is None:
            bucket.store.check()  # to tell a missing bucket, of which `size` says nothing
            raise PromptError(Problem(address, "there is no such object", f"correct the key, or {OBJECT}"))
    return [file_of(S3Object(bucket, key, size))]


def _folder(bucket: Bucket, key: str) -> Sequence[Rows]:
    prefix = f"{key.rstrip('/')}/" if key.strip("/") else ""
    bucket.store.check(FIRST_DEADLINE_S)
    listed = bucket.store.list(prefix, delimiter="/")
    found = [S3Object(bucket, one.key, one.size) for one in listed if one.key != prefix]  # some tools store it, empty
    return folder_of(f"{bucket.name}/{prefix}", found, "has no file of prompts")


@lru_cache(maxsize=8)
def _opened(endpoint: StoreEndpoint, process: int, environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    """Returns the objects of a bucket. A process that others made, and other variables, have a client of their own."""
    return ObjectStore(endpoint, "")


@contextmanager
def _foreseen(address: str) -> Iterator[None]:
    """Makes an error of a profile, or of an address in it, a `PromptError`."""
    try:
        yield
    except (boto.BotoCoreError, ValueError) as error:
        raise PromptError(Problem(address, f"cannot be opened: {error}", "correct AWS_PROFILE and its files")) from None
    except ServiceError as error:
        fix = "correct AWS_PROFILE, its files and AWS_ENDPOINT_URL_S3"
        raise PromptError(Problem(address, error.problems[0].what, fix)) from None
