"""JSON Lines: one JSON object per line, UTF-8. Row i stands on line i + 1, so no line may be blank."""

from collections.abc import Iterator
from functools import partial
from itertools import islice

from echo_queue.submission.sources.files.file import File, Slice
from echo_queue.submission.sources.json_lines import LIST, PER_LINE
from echo_queue.submission.sources.rows import MAX_ROW_BYTES, BadRow, read


class JsonLines(File):
    """A JSON Lines file, whose places are bytes: any slice is found at once."""

    def location(self, row: int) -> str:
        return f"{self.name}:{row + 1}"

    def slices(self, start: int, size: int) -> Iterator[Slice]:
        with self.open(start) as file:
            lines = iter(partial(file.readline, MAX_ROW_BYTES), b"")
            while block := list(islice(lines, size)):
                values = [_value(line) for line in block]
                if not start and isinstance(values[0], BadRow) and values[0].fix in (LIST, PER_LINE):
                    values = values[:1]  # the other lines are parts of the same value
                yield Slice(start, values)
                start += sum(map(len, block))


def _value(line: bytes) -> object:
    """Returns the value of a line, or what is wrong with it."""
    if len(line) == MAX_ROW_BYTES:
        return BadRow(f"is longer than {MAX_ROW_BYTES >> 20} MiB", "end every row with a newline")
    try:
        return read(line)
    except BadRow as bad:
        return bad
