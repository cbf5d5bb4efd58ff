"""The groups that the learner trained last, kept for people to read: in the run's directory, and in the object store.

    groups/SLOT in the directory, trained/SLOT in the store: header (JSON), newline, then the groups' bytes
    (`group_codec`), one after another

- There is one file for each of the last updates, each whole or absent. The newest replaces the oldest, so that they
  never hold more than `telemetry.keep_groups` groups and one update.
- An update's file is written after it. It is in the store before the checkpoint with its groups is committed; until
  then the groups are in replay. So whoever may read both finds every group that is kept.
- No role depends on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from echo_queue import documents
from echo_queue.atomic_file import write_atomically
from echo_queue.config import Config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Group, Version, group_codec

FOLDER, PREFIX = "groups", "trained/"
HEADER_BYTES = 1 << 16
"""An object is read in pieces of this size until its header is whole."""


@dataclass(frozen=True)
class TrainedGroup:
    """A group, and the version that the update with it made."""

    group: Group
    version: Version


class TrainedGroups:
    """The files with the groups trained last, which the learner writes. Other threads may call `send` meanwhile."""

    def __init__(self, config: Config) -> None:
        self._folder = config.run.dir / FOLDER
        self._slots = -(-config.telemetry.keep_groups // config.learner.batch_groups)
        self._unsent: dict[str, None] = {}

    def keep(self, version: Version, groups: Sequence[Group]) -> None:
        """Keeps the groups of the update that made `version` in a file."""
        if self._slots == 0:
            return
        parts = [group_codec.encode(group) for group in groups]
        header = _Header(version, tuple(group.task for group in groups), tuple(map(len, parts)))
        self._folder.mkdir(parents=True, exist_ok=True)
        slot = f"{version.number % self._slots:04d}"
        write_atomically(self._folder / slot, b"\n".join([documents.encode(header), b"".join(parts)]), "groups")
        self._unsent[slot] = None

    def send(self, store: ObjectStore) -> None:
        """Stores what was kept since the last call, at most all that is kept. Raises `ServiceError`."""
        for slot in tuple(self._unsent):
            del self._unsent[slot]  # before the file is read: if an update replaces it meanwhile, it is sent again
            store.put(PREFIX + slot, (self._folder / slot).read_bytes())


def in_directory(config: Config, task: str | None = None) -> TrainedGroup | None:
    """Returns the newest group of `task`, or without a task a group of the newest update; None if there is none.

    Raises `CodecError` for a damaged file.
    """
    return _find([_File(path) for path in (config.run.dir / FOLDER).glob("[0-9]" * 4)], task)


def in_store(store: ObjectStore, task: str | None = None) -> TrainedGroup | None:
    """Returns the same as `in_directory`, of the groups in the store. Raises `ServiceError`, and `CodecError`."""
    return _find([_Object(store, found.key) for found in store.list(PREFIX)], task)


class _Source(Protocol):
    """The place where the groups of one update lie. An update that comes later may replace them at any time."""

    def head(self) -> bytes: ...
    def whole(self) -> bytes: ...


@dataclass(frozen=True)
class _File:
    path: Path

    def head(self) -> bytes:
        with self.path.open("rb") as file:
            return file.readline()

    def whole(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class _Object:
    store: ObjectStore
    key: str

    def head(self) -> bytes:
        found = b""
        for piece in self.store.stream(self.key, piece_bytes=HEADER_BYTES):
            found += piece
            if b"\n" in piece:
                break
        return found

    def whole(self) -> bytes:
        return self.store.get(self.key)


@dataclass(frozen=True)
class _Header:
    """The groups of one update: their tasks, and the sizes of their bytes, in the same order."""

    version: Version
    tasks: tuple[str, ...]
    sizes: tuple[int, ...]


def _header(data: bytes) -> _Header:
    return documents.decode(_Header, data.partition(b"\n")[0], "the header of trained groups")


def _find(sources: Sequence[_Source], task: str | None) -> TrainedGroup | None:
    updates = ((_header(source.head()).version, source) for source in sources)
    for _, source in sorted(updates, key=itemgetter(0), reverse=True):
        if found := _in_update(source, task):
            return found
    return None


def _in_update(source: _Source, task: str | None) -> TrainedGroup | None:
    tasks = _header(source.head()).tasks
    if not tasks or task not in (None, *tasks):
        return None
    data = source.whole()
    header = _header(data)
    start = data.index(b"\n") + 1
    for name, size in zip(header.tasks, header.sizes, strict=True):
        if task in (None, name):
            return TrainedGroup(group_codec.decode(data[start : start + size]), header.version)
        start += size
    return None
