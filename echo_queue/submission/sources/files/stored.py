"""A file's bytes, wherever they are: the forms of files read them without knowing where.

`LocalFile` is a file of this machine; an object of a bucket is in `bucket.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from echo_queue.submission.sources.source import unreadable

READ_BUFFER_BYTES = 1024 * 1024


class Stored(Protocol):
    """A file that is stored somewhere."""

    @property
    def name(self) -> str:
        """Its name for a person, whose end tells the file's form: a path, or an address."""

    def open(self) -> BinaryIO:
        """Opens the file at its beginning, to be read at any place. Raises `PromptError`."""


@dataclass(frozen=True)
class LocalFile:
    """A file that this machine sees."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def open(self) -> BinaryIO:
        try:
            return self.path.open("rb", buffering=READ_BUFFER_BYTES)
        except OSError as error:
            raise unreadable(self.name, error) from None
