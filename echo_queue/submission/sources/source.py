"""Where prompts come from: one class per kind of source, all with the same two methods.

- `scan(size)` checks every row and cuts the source into chunks of `size` rows. Nothing is sent before
  a scan has ended well. It holds one chunk in memory at a time.
- `read(chunk)` reads exactly one chunk, on any machine that sees the source. A chunk whose content is
  not what was scanned is refused, so a file that changed is never admitted half old, half new.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow

GENERATED = "reasoning-gym:"
POKER = "poker:"

Scanned = tuple[Chunk, Sequence[PromptRow]]


class PromptSource(Protocol):
    @property
    def name(self) -> str:
        """Says the same to `open_source` on every machine."""

    def scan(self, size: int) -> Iterator[Scanned]:
        """Yields the chunks in order, with their rows where it had to read them.

        Raises `PromptError` naming the first bad rows.
        """

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        """The chunk's rows. Raises `PromptError` when it cannot be read, changed, or holds a bad row."""

    def place(self, index: int) -> str:
        """Where a person finds row `index` (from 0): file and line, row, or item."""


def spell(source: str, options: Mapping[str, Any]) -> str:
    """The name of a source with options, which only a generated one has. Raises `PromptError`."""
    if not options:
        return source
    if not source.startswith((GENERATED, POKER)):
        raise PromptError(Problem("prompts.options", f"mean nothing to the file {source}", "remove them"))
    return f"{source} {orjson.dumps(options, option=orjson.OPT_SORT_KEYS).decode()}"


def unreadable(path: Path, error: OSError) -> PromptError:
    """Names the machine: the path may have been written on another one."""
    what = f"cannot be read on {socket.gethostname()}: {error.strerror or error}"
    fix = "check the path and its rights; Celery workers read it themselves, so it must lie on a disk they share"
    return PromptError(Problem(str(path), what, fix))


def changed(path: str, first: int, last: int) -> PromptError:
    what = f"rows {first + 1} to {last} are not those that were submitted: the file has changed"
    return PromptError(Problem(path, what, "submit it again"))
