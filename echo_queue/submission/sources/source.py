"""The interface of prompt sources: one class per kind of source, all with the same two methods.

- `scan(size)` checks every row and cuts the source into chunks of `size` rows. No chunk is sent before the scan has
  succeeded. It holds one chunk in memory at a time.
- `read(chunk)` reads exactly one chunk, on any machine that sees the source. A chunk whose content differs from the
  scanned one is refused, so a file that changed is never admitted half old, half new.
"""

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import orjson

from echo_queue.config.prompt_map import UNMAPPED, PromptMap
from echo_queue.connections.storage.endpoint import SCHEME
from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow

GENERATED = "reasoning-gym:"
HUGGING_FACE = "hf:"
S3 = SCHEME
FOLDER = (".", "/", "~")
"""The beginnings of a folder's path behind `hf:`."""
OWN = re.compile(rf"(?!{HUGGING_FACE})[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The address of a set that the user's own code makes, `module:function`."""

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

    def location(self, chunk: Chunk, position: int) -> str:
        """Tells a person where row `position` (from 0) of a chunk is: file and line, row, or item."""


def is_generated(source: str) -> bool:
    """Returns whether code makes the rows of `source`, written without options, wherever it runs."""
    return source.startswith(GENERATED) or OWN.fullmatch(source) is not None


def spell(source: str, options: Mapping[str, Any], map: PromptMap = UNMAPPED) -> str:
    """Returns the name of a source with its options, or with what makes prompts of its rows.

    Raises `PromptError` for options of a source that has rows of its own, and for a map of a generated one.
    """
    generated = is_generated(source)
    if options and not generated:
        raise PromptError(Problem("prompts.options", f"mean nothing to the file {source}", "remove them"))
    if map != UNMAPPED and generated:
        raise PromptError(
            Problem("prompts.map", f"means nothing to {source}, which makes its own prompts", "remove it")
        )
    written = options if generated else map.model_dump(mode="json", exclude_defaults=True)
    return f"{source} {orjson.dumps(written, option=orjson.OPT_SORT_KEYS).decode()}" if written else source


def parts_of(name: str) -> tuple[str, dict[str, Any]]:
    """Returns a source's name without what `spell` has added, and that. Raises `PromptError` for what is no JSON."""
    source, mark, rest = name.partition(" {")
    if not mark or not rest.endswith("}"):
        return name, {}
    try:
        return source, orjson.loads("{" + rest)
    except orjson.JSONDecodeError as error:
        what = f"{{{rest:.100} behind {source} is no JSON: {error}"
        raise PromptError(Problem("prompts.source", what, 'write it as in {"seed": 1, "size": 500}')) from None


def unreadable(path: str, error: OSError) -> PromptError:
    """Returns the error for a file that cannot be read. It names the machine, since the submitter may be another."""
    what = f"cannot be read on {socket.gethostname()}: {error.strerror or error}"
    fix = "check the path and its rights; Celery workers read it themselves, so it must lie on a disk they share"
    return PromptError(Problem(path, what, fix))
