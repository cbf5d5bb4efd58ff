"""Parquet files with any columns, read in batches of rows whatever the file's row groups are.

A chunk's digest is that of its normalised rows, so it does not depend on the file's layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.rows import REPORTED_ROWS, BadRow, normalise, refuse, serialise
from echo_queue.submission.sources.source import Scanned, changed, unreadable

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


@dataclass(frozen=True)
class ParquetSource:
    """A Parquet file. Its chunks have no ticket."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def location(self, index: int) -> str:
        return f"{self.path} row {index + 1}"

    def scan(self, size: int) -> Iterator[Scanned]:
        with self._open() as file:
            bad: list[tuple[str, BadRow]] = []
            for number, values in enumerate(_slices(file, 0, file.metadata.num_rows, size)):
                first = number * size
                rows, digest = self._rows(first, values, bad)
                if not bad:
                    yield Chunk(number, first, len(rows), digest), rows
                if len(bad) >= REPORTED_ROWS:
                    break
            refuse(bad)
            if not file.metadata.num_rows:
                raise PromptError(Problem(self.name, "has no rows", "write one prompt per row"))

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        with self._open() as file:
            if chunk.first + chunk.count > file.metadata.num_rows:
                raise changed(self.name, chunk.first, chunk.first + chunk.count)
            values = next(_slices(file, chunk.first, chunk.count, chunk.count))
        bad: list[tuple[str, BadRow]] = []
        rows, digest = self._rows(chunk.first, values, bad)
        refuse(bad)
        if digest != chunk.digest:
            raise changed(self.name, chunk.first, chunk.first + chunk.count)
        return rows

    def _rows(
        self, first: int, values: list[dict[str, object]], bad: list[tuple[str, BadRow]]
    ) -> tuple[list[PromptRow], str]:
        """Returns the rows from row `first` on and their digest; adds bad rows to `bad`, up to REPORTED_ROWS."""
        rows, digest = [], blake3()
        for index, row in enumerate(values, start=first):
            try:
                rows.append(normalise(row))
                digest.update(serialise(rows[-1]))
            except BadRow as wrong:
                bad.append((self.location(index), wrong))
                if len(bad) >= REPORTED_ROWS:
                    break
        return rows, digest.hexdigest()

    def _open(self) -> "ParquetFile":
        try:
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import ParquetFile
        except ImportError:
            fix = "pip install 'echo-queue[parquet]', or write the prompts as .jsonl"
            raise PromptError(Problem(self.name, "needs the pyarrow package", fix)) from None
        try:
            file = ParquetFile(self.path)
        except ArrowInvalid as error:
            raise PromptError(Problem(self.name, f"is not Parquet: {error}", "write the file again")) from None
        except OSError as error:
            raise unreadable(self.path, error) from None
        if "prompt" not in file.schema_arrow.names:
            columns = ", ".join(file.schema_arrow.names)
            file.close()
            raise PromptError(Problem(self.name, f"has no `prompt` column ({columns})", "name that column `prompt`"))
        return file


def _slices(file: "ParquetFile", first: int, count: int, size: int) -> Iterator[list[dict[str, object]]]:
    """Yields rows first … first + count − 1, `size` at a time (the last slice may be shorter)."""
    groups, skip = _row_groups(file, first, count)
    rows: list[dict[str, object]] = []
    for batch in file.iter_batches(batch_size=size, row_groups=groups):
        wanted = batch.slice(skip, count)
        skip -= min(skip, batch.num_rows)
        count -= wanted.num_rows
        rows += wanted.to_pylist()
        while len(rows) >= size:
            yield rows[:size]
            del rows[:size]
    if rows:
        yield rows


def _row_groups(file: "ParquetFile", first: int, count: int) -> tuple[list[int], int]:
    """Returns the row groups that hold those rows, and the number of rows before `first` in the first of them."""
    groups: list[int] = []
    skip = start = 0
    for group in range(file.num_row_groups):
        end = start + file.metadata.row_group(group).num_rows
        if start < first + count and first < end:
            if not groups:
                skip = first - start
            groups.append(group)
        start = end
    return groups, skip
