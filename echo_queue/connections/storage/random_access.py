"""Bytes that can be read at any place, as the file that libraries ask for."""

import io
from abc import abstractmethod
from typing import Any


class RandomAccess(io.RawIOBase):
    """A file of `size` bytes, of which a subclass reads those at a place."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self._at = size, 0

    @abstractmethod
    def read_at(self, start: int, most: int) -> memoryview:
        """Returns the bytes from `start` on, at most so many, and at least one unless the file ends there."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, or a part of it. Returns 0 at the end. Raises as `read_at` does."""
        piece = self.read_at(self._at, len(buffer))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
