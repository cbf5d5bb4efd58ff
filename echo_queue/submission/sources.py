"""Where prompts come from: one class per kind of source, all with the same two methods.

- `scan(size)` checks every row and cuts the source into chunks of `size` rows. Nothing is sent before
  a scan has ended well. It holds one chunk in memory at a time.
- `read(chunk)` reads exactly one chunk, on any machine that sees the source. A chunk whose content is
  not what was scanned is refused, so a file that changed is never admitted half old, half new.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow

GENERATED = "reasoning-gym:"


class Source(Protocol):
    @property
    def name(self) -> str:
        """Names the source on every machine: an absolute path, or `reasoning-gym:DATASET`."""

    def scan(self, size: int) -> Iterator[Chunk]:
        """Yields the chunks in order. Raises `PromptError` naming the first bad rows."""

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        """The chunk's rows. Raises `PromptError` when it cannot be read, changed, or holds a bad row."""

    def place(self, index: int) -> str:
        """Where a person finds row `index` (from 0): file and line, row, or item."""


def open_source(name: str, options: Mapping[str, Any]) -> Source:
    """The source that `name` means. Raises `PromptError` for one that is none."""
    if name.startswith(GENERATED):
        from echo_queue.submission.generated import Generated

        return Generated(name.removeprefix(GENERATED), options)
    if options:
        raise PromptError(Problem("prompts.options", f"mean nothing to the file {name}", "remove them"))
    path = Path(name).expanduser().absolute()
    match path.suffix:
        case ".jsonl":
            from echo_queue.submission.jsonl import JsonLines

            return JsonLines(path)
        case ".parquet":
            from echo_queue.submission.parquet import Parquet

            return Parquet(path)
    what = "no source is named" if not name else f"{name!r} is no source of prompts"
    raise PromptError(Problem("prompts.source", what, f"name a .jsonl or .parquet file, or {GENERATED}DATASET"))


def unreadable(path: Path, error: OSError) -> PromptError:
    """A file that this machine cannot read, said so that it also helps when another machine wrote its path."""
    mend = "check the path and its rights; Celery workers read it themselves, so it must be on a disk they share"
    return PromptError(Problem(str(path), f"cannot be read here: {error.strerror or error}", mend))


def changed(path: str, first: int, last: int) -> PromptError:
    what = f"rows {first + 1} to {last} are not those that were submitted: the file has changed"
    return PromptError(Problem(path, what, "submit it again"))
