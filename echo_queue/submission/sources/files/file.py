"""The files that hold prompts: one form of file is one class, and every class reads slices of rows in the same way.

What a file holds is unpacked while it is read if its name ends in `.gz` or `.zst`. A torn or damaged file is an error,
and never the end of its rows.
"""

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple, Protocol, cast

import zstandard

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.files.stored import READ_BUFFER_BYTES, Stored
from echo_queue.submission.sources.source import unreadable

PACKED_BYTES = 64 * 1024


class Slice(NamedTuple):
    """Rows that follow one another. A row that cannot be read is the `BadRow` that says why."""

    start: int
    """The place of the first one, as `slices` understands it."""
    values: Sequence[object]


class Rows(Protocol):
    """What holds rows: a file of some form, or a data set."""

    @property
    def name(self) -> str:
        """Its name for a person."""

    @property
    def changed(self) -> tuple[str, str]:
        """Why its rows may not be those that were submitted, and what to do then."""

    def slices(self, start: int, size: int) -> Iterator[Slice]:
        """Yields the rows from a place on, `size` at a time; the last slice is shorter. 0 is the first place.

        Raises `PromptError` for what cannot be read at all.
        """

    def location(self, row: int) -> str:
        """Tells a person where row `row` (from 0) is."""


@dataclass(frozen=True)
class File:
    """A file of some form."""

    stored: Stored

    changed = ("the file has changed", "submit it again")

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def pack(self) -> str:
        """The end of the name that tells how the file is packed; empty if it is not."""
        suffix = PurePosixPath(self.name).suffix.lower()
        return suffix if suffix in UNPACK else ""

    def location(self, row: int) -> str:
        return f"{self.name} row {row + 1}"

    def open(self, start: int = 0) -> BinaryIO:
        """Opens the file at byte `start` of what it holds. Raises `PromptError`."""
        file = self.stored.open()
        if not self.pack:
            file.seek(start)
            return file
        unpacked = io.BufferedReader(Unpacked(file, self.name, UNPACK[self.pack]), READ_BUFFER_BYTES)
        while start > 0 and (skipped := unpacked.read(min(start, READ_BUFFER_BYTES))):
            start -= len(skipped)
        return unpacked


class Unpacker(Protocol):
    """The part of a `decompressobj` of zlib or zstandard that is used here: it reads one member of a file."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


UNPACK: dict[str, Callable[[], Unpacker]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": lambda: cast(Unpacker, zstandard.ZstdDecompressor().decompressobj()),
}


class Unpacked(io.RawIOBase):
    """What a packed file holds, of all its members, as bytes to be read from the beginning."""

    def __init__(self, file: BinaryIO, name: str, unpack: Callable[[], Unpacker]) -> None:
        self._file, self._name, self._unpack = file, name, unpack
        self._member: Unpacker | None = None
        self._ahead = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fills the buffer. Returns 0 at the end. Raises `PromptError` for a file that is damaged, or torn."""
        try:
            while not self._ready and self._more():
                pass
        except (zlib.error, zstandard.ZstdError) as error:
            raise self._damaged(str(error)) from None
        except OSError as error:
            raise unreadable(self._name, error) from None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _more(self) -> bool:
        """Unpacks some more. Returns False at the end of the file."""
        packed = self._ahead or self._file.read(PACKED_BYTES)
        self._ahead = b""
        if not packed:
            if self._member is not None:
                raise self._damaged("it ends too early")
            return False
        self._member = self._member or self._unpack()
        self._ready = memoryview(self._member.decompress(packed))
        if self._member.eof:
            self._ahead, self._member = self._member.unused_data, None
        return True

    def _damaged(self, why: str) -> PromptError:
        what = f"is damaged, or not packed as its name says: {why}"
        return PromptError(Problem(self._name, what, "copy or pack it again, or name it by what it is"))
