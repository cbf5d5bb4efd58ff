"""The groups that the learner trained last, kept in the run's directory for people to read.

    groups/SLOT: header (JSON), newline, then the groups' bytes (`group_codec`), one after another

- There is one file for each of the last updates, each whole or absent. The newest replaces the oldest, so that they
  never hold more than `telemetry.keep_groups` groups and one update.
- No role depends on them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from echo_queue.atomic_file import write_atomically
from echo_queue.config import Config
from echo_queue.records import Group, Version, group_codec


@dataclass(frozen=True)
class TrainedGroup:
    """A group, and the version that the update with it made."""

    group: Group
    version: Version


class TrainedGroups:
    """The files with the groups trained last."""

    def __init__(self, config: Config) -> None:
        self._folder = config.run.dir / "groups"
        self._slots = -(-config.telemetry.keep_groups // config.learner.batch_groups)

    def keep(self, version: Version, groups: Sequence[Group]) -> None:
        """Keeps the groups of the update that made `version`."""
        if self._slots == 0:
            return
        parts = [group_codec.encode(group) for group in groups]
        header = {"lineage": version.lineage, "version": version.number, "sizes": [len(part) for part in parts]}
        self._folder.mkdir(parents=True, exist_ok=True)
        slot = self._folder / f"{version.number % self._slots:04d}"
        write_atomically(slot, b"\n".join([orjson.dumps(header), b"".join(parts)]), "groups")

    def find(self, task: str | None = None) -> TrainedGroup | None:
        """Returns the newest group of `task`, or without a task a group of the newest update; None if there is none.

        Raises `CodecError` for a damaged file.
        """
        updates = [_Update.open(path) for path in self._folder.glob("[0-9]" * 4)]
        for update in sorted(updates, key=lambda update: update.version, reverse=True):
            for group in update.groups():
                if task in (None, group.task):
                    return TrainedGroup(group, update.version)
        return None


@dataclass(frozen=True)
class _Update:
    version: Version
    sizes: Sequence[int]
    data: bytes

    @classmethod
    def open(cls, path: Path) -> "_Update":
        header, _, data = path.read_bytes().partition(b"\n")
        fields = orjson.loads(header)
        return cls(Version(fields["lineage"], fields["version"]), fields["sizes"], data)

    def groups(self) -> Iterator[Group]:
        start = 0
        for size in self.sizes:
            yield group_codec.decode(self.data[start : start + size])
            start += size
