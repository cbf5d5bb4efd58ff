"""Rows of any origin as chunks, whose digest is that of the normalised rows."""

from collections.abc import Iterable, Iterator

from blake3 import blake3

from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.rows import SOUGHT_ROWS, BadRow, normalise, refuse, serialise
from echo_queue.submission.sources.source import PromptSource, Scanned


def scan(slices: Iterable[Iterable[object]], size: int, source: PromptSource) -> Iterator[Scanned]:
    """Yields a chunk of each slice of `size` rows of `source`. Raises `PromptError` that names the first bad rows."""
    bad: list[tuple[str, BadRow]] = []
    for number, values in enumerate(slices):
        rows, digest = _checked(values, number * size, source, bad)
        if not bad:
            yield Chunk(number, number * size, len(rows), digest), rows
        if len(bad) >= SOUGHT_ROWS:
            break
    refuse(bad)


def read(values: Iterable[object], first: int, source: PromptSource) -> tuple[list[PromptRow], str]:
    """Returns the rows from row `first` on and their digest. Raises `PromptError` for a bad one."""
    bad: list[tuple[str, BadRow]] = []
    found = _checked(values, first, source, bad)
    refuse(bad)
    return found


def _checked(
    values: Iterable[object], first: int, source: PromptSource, bad: list[tuple[str, BadRow]]
) -> tuple[list[PromptRow], str]:
    """Returns the rows from row `first` on and their digest; adds bad rows to `bad`, up to SOUGHT_ROWS."""
    rows, digest = list[PromptRow](), blake3()
    for index, row in enumerate(values, start=first):
        try:
            rows.append(normalise(row))
            digest.update(serialise(rows[-1]))
        except BadRow as wrong:
            bad.append((source.location(index), wrong))
            if len(bad) >= SOUGHT_ROWS:
                break
    return rows, digest.hexdigest()
