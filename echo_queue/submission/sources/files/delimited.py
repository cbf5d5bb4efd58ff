"""Tables of text: `.csv`, whose columns commas separate, and `.tsv` with tabs, as RFC 4180 has them, in UTF-8.

The first line names the columns, and every value is text. A line with nothing on it is no row.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.files.file import File, Slice
from echo_queue.submission.sources.rows import MAX_ROW_BYTES, BadRow

if TYPE_CHECKING:
    from _csv import Reader

DELIMITERS = {".csv": ",", ".tsv": "\t"}
QUOTE = "put a value with quotes, line breaks or separators in it into quotes, and double the quotes in it"

csv.field_size_limit(MAX_ROW_BYTES)


class Delimited(File):
    """A table of text, whose places are rows."""

    def slices(self, start: int, size: int) -> Iterator[Slice]:
        with self.open() as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=self._delimiter, strict=True)
            rows = self._rows(reader)
            names = self._names(next(rows, []))
            rows = islice(rows, start, None)
            while values := [self._row(names, row) for row in islice(rows, size)]:
                yield Slice(start, values)
                start += len(values)

    @property
    def _delimiter(self) -> str:
        return DELIMITERS[PurePosixPath(self.name[: len(self.name) - len(self.pack)]).suffix.lower()]

    def _rows(self, reader: "Reader") -> Iterator[list[str]]:
        try:
            yield from filter(None, reader)
        except csv.Error as error:
            raise PromptError(Problem(f"{self.name}:{reader.line_num}", f"cannot be read: {error}", QUOTE)) from None
        except UnicodeDecodeError as error:
            where, wrong = f"{self.name}:{reader.line_num + 1}", error.object[error.start]
            what = f"is not UTF-8 here, or some lines below (byte {wrong:#04x})"
            raise PromptError(Problem(where, what, "save the file as UTF-8")) from None

    def _names(self, names: list[str]) -> list[str]:
        """Returns the names of the columns. Raises `PromptError` unless each column has one of its own."""
        if twice := next((name for name, count in Counter(names).items() if count > 1), None):
            raise PromptError(Problem(f"{self.name}:1", f"names the column {twice!r} twice", "rename one of them"))
        if "" in names:
            raise PromptError(Problem(f"{self.name}:1", "has a column without a name", "name it, or leave it out"))
        if len(names) == 1 and any(sign in names[0] for sign in ";,\t|"):
            sign = "commas" if self._delimiter == "," else "tabs"
            what = f"names one column alone, {names[0]!r}"
            raise PromptError(
                Problem(f"{self.name}:1", what, f"separate columns by {sign}, or name the file by its kind")
            )
        return names

    def _row(self, names: list[str], row: list[str]) -> object:
        if len(row) != len(names):
            return BadRow(f"has {len(row)} values for {len(names)} columns", QUOTE)
        return dict(zip(names, row, strict=True))
