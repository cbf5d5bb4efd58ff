"""The interface of prompt sources: one class per kind of source, all with the same two methods.

- `scan(size)` checks every row and cuts the source into chunks of `size` rows. No chunk is sent before the scan has
  succeeded. It holds one chunk in memory at a time.
- `read(chunk)` reads exactly one chunk, on any machine that sees the source. A chunk whose content differs from the
  scanned one is refused, so a file that changed is never admitted half old, half new.
"""

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import orjson

from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow

GENERATED = "reasoning-gym:"
OWN = re.compile(r"(?P<reference>[A-Za-z_][\w.]*:[A-Za-z_]\w*)(?: (?P<options>\{.*\}))?")
"""The name of a set of the user's own, with its options as JSON."""

Scanned = tuple[Chunk, Sequence[PromptRow]]
"""A chunk, with its rows if the scan had to read them."""


class PromptSource(Protocol):
    """A source of prompts, which chunks can be read from."""

    @property
    def name(self) -> str:
        """The name with which `open_source` opens the same source on every machine."""

    def scan(self, size: int) -> Iterator[Scanned]:
        """Yields the chunks in order, with their rows if it had to read them.

        Raises `PromptError` that names the first bad rows.
        """

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        """Returns the chunk's rows. Raises `PromptError` if it cannot be read, has changed, or holds a bad row."""

    def location(self, index: int) -> str:
        """Tells a person where row `index` (from 0) is: file and line, row, or item."""


def is_generated(name: str) -> bool:
    """Returns whether code makes this source's rows, on whatever machine; any other source is a file."""
    return name.startswith(GENERATED) or OWN.fullmatch(name) is not None


def spell(source: str, options: Mapping[str, Any]) -> str:
    """Returns the name of a source with its options. Raises `PromptError` for options of a file, which has none."""
    if not options:
        return source
    if not is_generated(source):
        raise PromptError(Problem("prompts.options", f"mean nothing to the file {source}", "remove them"))
    return f"{source} {orjson.dumps(options, option=orjson.OPT_SORT_KEYS).decode()}"


def unreadable(path: Path, error: OSError) -> PromptError:
    """Returns the error for a file that cannot be read. It names the machine, since the submitter may be another."""
    what = f"cannot be read on {socket.gethostname()}: {error.strerror or error}"
    fix = "check the path and its rights; Celery workers read it themselves, so it must lie on a disk they share"
    return PromptError(Problem(str(path), what, fix))


def changed(path: str, first: int, last: int) -> PromptError:
    """Returns the error for a file whose rows `first … last − 1` are no longer those of the scan."""
    what = f"rows {first + 1} to {last} are not those that were submitted: the file has changed"
    return PromptError(Problem(path, what, "submit it again"))
