"""Standard output and error that a role or a command can always write to.

- A character that the terminal's encoding lacks is written as an escape.
- Once the reader is gone (`| head`, a closed terminal), what is written is dropped: a run goes on without a reader.
- A stream that was closed before the program began leads nowhere, so that no file of the program takes its number.
"""

import errno
import io
import os
import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDIN, STDOUT, STDERR = range(3)
GONE = frozenset({errno.EPIPE, errno.EIO})
"""The errors of a stream whose reader is gone: a pipe's, and a terminal's."""


class _File(io.FileIO):
    """An open file descriptor, which leads nowhere once its reader is gone."""

    gone = False

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
            self.gone = True
            _lead_nowhere(self.fileno())
            return memoryview(data).nbytes


def always_writable() -> None:
    """Makes both streams of this process such streams. Call it first in a program's main function."""
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            _lead_nowhere(number)
    sys.stdout = _made(sys.stdout, sys.__stdout__, STDOUT)
    sys.stderr = _made(sys.stderr, sys.__stderr__, STDERR)


def reader_is_gone() -> bool:
    """Returns whether nobody reads what is printed on stdout, as far as a write has shown."""
    buffer = getattr(sys.stdout, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    return isinstance(raw, _File) and raw.gone


def _made(stream: IO[str] | None, original: IO[str] | None, number: int) -> IO[str]:
    """Returns the stream anew, unless it is not the process's own any more, or was made before."""
    if stream is not None and (stream is not original or not isinstance(stream, io.TextIOWrapper)):
        return stream
    unbuffered = isinstance(stream, io.TextIOWrapper) and stream.write_through
    if stream is not None:
        stream.flush()
    raw = _File(number, "wb", closefd=False)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding if stream is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty() or number == STDERR,
        write_through=unbuffered,
    )


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
