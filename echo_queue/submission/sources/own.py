"""A prompt set of the user's own, `module:function`: called with the set's options, it returns a sequence of rows.

Every machine that reads a chunk makes the sequence itself. The chunk's digest is that of its rows, so a machine whose
code makes others refuses the chunk.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from traceback import extract_tb
from typing import Any, TypeVar

import orjson

from echo_queue.config.named_function import named_function
from echo_queue.errors import EchoQueueError, Problem, PromptError
from echo_queue.submission.sources.files.file import Slice
from echo_queue.submission.sources.source import spell

T = TypeVar("T")


@dataclass(frozen=True)
class OwnRows:
    """The rows of one set: those of `reference` called with `options`, whose places are their indices."""

    reference: str
    options: Mapping[str, Any]

    changed = (
        "its code, or a package, is not the submitter's",
        "have the same on both machines, then submit again",
    )

    @property
    def name(self) -> str:
        return spell(self.reference, self.options)

    def location(self, row: int) -> str:
        return f"{self.reference} row {row}"

    def slices(self, start: int, size: int) -> Iterator[Slice]:
        total = ask(self.reference, self.options, len)
        if not total:
            raise PromptError(Problem(self.name, "has no rows", "check prompts.options"))
        for place in range(start, total, size):
            yield Slice(place, self._copies(place, min(place + size, total)))

    def _copies(self, first: int, last: int) -> list[object]:
        """Returns rows first … last − 1, copied, since `normalise` takes them apart."""

        def copies(rows: Any) -> list[object]:
            found = (rows[index] for index in range(first, last))
            return [{**row} if isinstance(row, dict) else row for row in found]

        return ask(self.reference, self.options, copies)


def ask(reference: str, options: Mapping[str, Any], question: Callable[[Any], T]) -> T:
    """Returns what `question` finds in the user's sequence, which is made once in a process.

    Raises `PromptError`, whatever the user's code raises.
    """
    try:
        return question(_made(reference, orjson.dumps(options)))
    except EchoQueueError as error:
        raise PromptError(*error.problems) from None
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        what = f"{reference} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        raise PromptError(Problem("prompts.source", what, "mend it there, or prompts.options")) from error


@cache
def _made(reference: str, options: bytes) -> Any:
    return named_function(reference, "prompts.source", "command")(**orjson.loads(options))
