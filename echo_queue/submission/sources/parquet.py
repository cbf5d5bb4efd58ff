"""Parquet files with any columns, read in batches of rows whatever the file's row groups are.

A chunk's digest is that of its normalised rows, so it does not depend on the file's layout.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources import checked_rows, parquet_columns
from echo_queue.submission.sources.rows import REPORTED
from echo_queue.submission.sources.source import Scanned, changed, unreadable

if TYPE_CHECKING:
    from pyarrow import RecordBatch
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
            count = file.metadata.num_rows
            yield from checked_rows.scan(self._slices(file, 0, count, size), size, self)
            if not count:
                raise PromptError(Problem(self.name, "has no rows", "write one prompt per row"))

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        with self._open() as file:
            if chunk.first + chunk.count > file.metadata.num_rows:
                raise changed(self.name, chunk.first, chunk.first + chunk.count)
            values = next(self._slices(file, chunk.first, chunk.count, chunk.count))
        rows, digest = checked_rows.read(values, chunk.first, self)
        if digest != chunk.digest:
            raise changed(self.name, chunk.first, chunk.first + chunk.count)
        return rows

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
            raise PromptError(
                Problem(self.name, f"is not Parquet: {_in_one_line(error)}", "write the file again")
            ) from None
        except OSError as error:
            raise unreadable(self.path, error) from None
        if found := tuple(islice(parquet_columns.problems(self.name, file.schema_arrow), REPORTED)):
            file.close()
            raise PromptError(*found)
        return file

    def _slices(self, file: "ParquetFile", first: int, count: int, size: int) -> Iterator[list[dict[str, object]]]:
        """Yields rows first … first + count − 1, `size` at a time (the last slice may be shorter)."""
        rows: list[dict[str, object]] = []
        for batch in self._batches(file, first, count, size):
            try:
                rows += batch.to_pylist()
            except ValueError:
                raise self._unreadable(batch, first) from None
            first += batch.num_rows
            while len(rows) >= size:
                yield rows[:size]
                del rows[:size]
        if rows:
            yield rows

    def _batches(self, file: "ParquetFile", first: int, count: int, size: int) -> Iterator["RecordBatch"]:
        """Yields those rows in batches of up to `size`."""
        groups, skip = _row_groups(file, first, count)
        try:
            for batch in file.iter_batches(batch_size=size, row_groups=groups):
                wanted = batch.slice(skip, count)
                skip -= min(skip, batch.num_rows)
                count -= wanted.num_rows
                yield wanted
        except (OSError, ValueError) as error:  # Arrow's own errors are of these kinds
            raise PromptError(
                Problem(self.name, f"is damaged: {_in_one_line(error)}", "write the file again")
            ) from None

    def _unreadable(self, batch: "RecordBatch", first: int) -> PromptError:
        """Returns the error for a batch, which begins with row `first`, that has a value which is none of Python's."""
        row, column, why = parquet_columns.unreadable(batch) or (0, "?", "?")
        what = f"has a value in `{column}` that cannot be read: {why}"
        return PromptError(Problem(self.location(first + row), what, "write that column as UTF-8 text, or numbers"))


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


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
