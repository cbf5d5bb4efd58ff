"""The files that hold prompts: one form of file is one class, and every class reads slices of rows in the same way.

What a file holds is unpacked while it is read if its name ends in `.gz` or `.zst`. A torn or damaged file is an error,
and never the end of its rows.
"""

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, cast

import zstandard

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.source import unreadable

READ_BUFFER_BYTES = 1024 * 1024
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
    """A file, and the name by which a person knows it: its path, or an address of which it is the copy."""

    path: Path
    name: str

    changed = ("the file has changed", "submit it again")

    def location(self, row: int) -> str:
        return f"{self.name} row {row + 1}"

    def open(self, start: int = 0) -> BinaryIO:
        """Opens the file at byte `start` of what it holds. Raises `PromptError`."""
        try:
            file = self.path.open("rb", buffering=READ_BUFFER_BYTES)
        except OSError as error:
            raise unreadable(self.name, error) from None
        unpack = UNPACK.get(self.path.suffix.lower())
        if unpack is None:
            file.seek(start)
            return file
        unpacked = io.BufferedReader(Unpacked(file, self.name, unpack), READ_BUFFER_BYTES)
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
