"""JSON Lines: one JSON object per line, UTF-8. Row i stands on line i + 1, so no line may be blank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import orjson
from blake3 import blake3

from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.json_lines import LIST, PER_LINE
from echo_queue.submission.sources.rows import MAX_ROW_BYTES, SOUGHT_ROWS, BadRow, parse, refuse
from echo_queue.submission.sources.source import Scanned, changed, unreadable

READ_BUFFER_BYTES = 1024 * 1024


def byte_range(ticket: str) -> tuple[int, int]:
    """Returns the offset and the number of bytes that a ticket names. Raises `PromptError`."""
    try:
        match orjson.loads(ticket):
            case {"offset": int(offset), "bytes": int(size)} if min(offset, size) >= 0 and max(offset, size) < 1 << 60:
                return offset, size
    except orjson.JSONDecodeError:
        pass
    raise PromptError(Problem("ticket", f"{ticket:.100} names no range of a file", "submit the set again"))


@dataclass(frozen=True)
class JsonLinesSource:
    """A JSON Lines file. A chunk's ticket holds its range of the file: {"offset": bytes, "bytes": count}."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def location(self, index: int) -> str:
        return f"{self.path}:{index + 1}"

    def scan(self, size: int) -> Iterator[Scanned]:
        try:
            with self.path.open("rb", buffering=READ_BUFFER_BYTES) as file:
                yield from self._scan(file, size)
        except OSError as error:
            raise unreadable(self.path, error) from None

    def _scan(self, file: BinaryIO, size: int) -> Iterator[Scanned]:
        lines = iter(partial(file.readline, MAX_ROW_BYTES), b"")
        number = first = offset = 0
        bad: list[tuple[str, BadRow]] = []
        while block := list(islice(lines, size)):
            rows = self._rows(first, block, bad)
            data = b"".join(block)
            ticket = orjson.dumps({"offset": offset, "bytes": len(data)}).decode()
            if not bad:
                yield Chunk(number, first, len(block), blake3(data).hexdigest(), ticket), rows
            if bad and bad[0][0] == self.location(0) and bad[0][1].fix in (LIST, PER_LINE):
                refuse(bad[:1])  # the other lines are parts of the same value
            number, first, offset = number + 1, first + len(block), offset + len(data)
            if len(bad) >= SOUGHT_ROWS:
                break
        refuse(bad)
        if not first:
            raise PromptError(Problem(self.name, "is empty", "write one prompt per line"))

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        offset, size = byte_range(chunk.ticket)
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise unreadable(self.path, error) from None
        if blake3(data).hexdigest() != chunk.digest:
            raise changed(self.name, chunk.first, chunk.first + chunk.count)
        bad: list[tuple[str, BadRow]] = []
        rows = self._rows(chunk.first, data.removesuffix(b"\n").split(b"\n"), bad)
        refuse(bad)
        return rows

    def _rows(self, first: int, lines: list[bytes], bad: list[tuple[str, BadRow]]) -> list[PromptRow]:
        """Parses the lines from row `first` on; adds those that fail to `bad`, up to SOUGHT_ROWS."""
        rows = []
        for index, line in enumerate(lines, start=first):
            try:
                if len(line) == MAX_ROW_BYTES:
                    raise BadRow(f"is longer than {MAX_ROW_BYTES >> 20} MiB", "end every row with a newline")
                rows.append(parse(line))
            except BadRow as row:
                bad.append((self.location(index), row))
                if len(bad) >= SOUGHT_ROWS:
                    break
        return rows
