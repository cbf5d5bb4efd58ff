"""Parquet files with any columns, read in batches of rows whatever the file's row groups are."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.files import parquet_columns
from echo_queue.submission.sources.files.file import File, Slice
from echo_queue.submission.sources.rows import REPORTED
from echo_queue.submission.sources.source import unreadable

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyarrow.parquet import ParquetFile


class Parquet(File):
    """A Parquet file, whose places are rows."""

    def slices(self, start: int, size: int) -> Iterator[Slice]:
        with self.open() as stored, self._open(stored) as file:
            for values in self._slices(file, start, max(0, file.metadata.num_rows - start), size):
                yield Slice(start, values)
                start += len(values)

    def _open(self, stored: BinaryIO) -> "ParquetFile":
        try:
            from pyarrow import ArrowInvalid
            from pyarrow.parquet import ParquetFile
        except ImportError:
            fix = "pip install 'echo-queue[parquet]', or write the prompts as .jsonl"
            raise PromptError(Problem(self.name, "needs the pyarrow package", fix)) from None
        try:
            file = ParquetFile(stored)
        except ArrowInvalid as error:
            raise PromptError(
                Problem(self.name, f"is not Parquet: {_in_one_line(error)}", "write the file again")
            ) from None
        except OSError as error:
            raise unreadable(self.name, error) from None
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
