"""A source of rows that stand somewhere: in a file, in the files of a folder, or in a data set.

- Rows are cut where they stand, before a mapping leaves some of them out, so no chunk has rows of two files. A chunk's
  ticket says where they stand: {"file": name, "start": place, "row": number of the first, "rows": count}.
- A chunk's digest is that of its rows as they are sent. It depends neither on the form of a file nor on its packing,
  and a mapping that makes other prompts is another set.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import orjson

from echo_queue.config.prompt_map import UNMAPPED, PromptMap
from echo_queue.errors import Problem, PromptError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.files.file import Rows, Slice
from echo_queue.submission.sources.row_map import mapped
from echo_queue.submission.sources.rows import SOUGHT_ROWS, BadRow, digest_of, normalise, refuse, serialise
from echo_queue.submission.sources.source import Scanned, spell

MOST = 1 << 60


class Place(NamedTuple):
    """The place of a chunk's rows."""

    file: str
    start: int
    row: int
    rows: int


def place_in(ticket: str) -> Place:
    """Returns the place that a ticket names. Raises `PromptError`."""
    try:
        match orjson.loads(ticket):
            case {"file": str(file), "start": int(start), "row": int(row), "rows": int(rows)} if (
                min(start, row, rows - 1) >= 0 and max(start, row, rows) < MOST
            ):
                return Place(file, start, row, rows)
    except orjson.JSONDecodeError:
        pass
    raise PromptError(Problem("ticket", f"{ticket:.100} names no rows", "submit the set again"))


@dataclass(frozen=True)
class RowSource:
    """The rows of `parts`, one after the other, as `map` makes prompts of them."""

    address: str
    parts: Sequence[Rows]
    map: PromptMap = UNMAPPED

    @property
    def name(self) -> str:
        return spell(self.address, {}, self.map)

    def location(self, chunk: Chunk, position: int) -> str:
        place = place_in(chunk.ticket)
        part = self._part(place.file)
        if place.rows != chunk.count:
            found = enumerate(self._at(place).values)
            kept = [row for row, value in found if isinstance(value, dict) and mapped(self.map, value) is not None]
            position = kept[position]
        return part.location(place.row + position)

    def scan(self, size: int) -> Iterator[Scanned]:
        number = first = seen = 0
        bad: list[tuple[str, BadRow]] = []
        for part in self.parts:
            row = 0
            for piece in part.slices(0, size):
                place = Place(part.name, piece.start, row, len(piece.values))
                rows, digest = self._rows(part, place, piece, bad)
                if rows and not bad:
                    ticket = orjson.dumps(place._asdict()).decode()
                    yield Chunk(number, first, len(rows), digest, ticket), rows
                    number, first = number + 1, first + len(rows)
                row += len(piece.values)
                if len(bad) >= SOUGHT_ROWS:
                    refuse(bad)
            seen += row
        refuse(bad)
        if not seen:
            raise PromptError(Problem(self.address, "is empty", "write one prompt per line, or per row"))
        if not first:
            what = f"leaves out every row of {self.address}"
            raise PromptError(Problem("prompts.map", what, "let its filters keep some of them"))

    def read(self, chunk: Chunk) -> Sequence[PromptRow]:
        place = place_in(chunk.ticket)
        part, bad = self._part(place.file), list[tuple[str, BadRow]]()
        rows, digest = self._rows(part, place, self._at(place), bad)
        if bad or digest != chunk.digest:
            raise self._changed(part, place)
        return rows

    def _rows(
        self, part: Rows, place: Place, piece: Slice, bad: list[tuple[str, BadRow]]
    ) -> tuple[list[PromptRow], str]:
        """Returns the prompts of a slice and their digest; adds bad rows to `bad`, up to SOUGHT_ROWS."""
        rules = None if self.map == UNMAPPED else self.map
        rows: dict[int, PromptRow] = {}
        for row, value in enumerate(piece.values, start=place.row):
            try:
                if isinstance(value, BadRow):
                    raise value
                if (kept := value if rules is None else mapped(rules, value)) is not None:
                    rows[row] = normalise(kept)
            except BadRow as wrong:
                bad.append((part.location(row), wrong))
                if len(bad) >= SOUGHT_ROWS:
                    break
        prompts = list(rows.values())
        try:
            return prompts, digest_of(prompts)
        except TypeError:
            bad += islice(_unheld(part, rows), SOUGHT_ROWS)
            return [], ""

    def _part(self, name: str) -> Rows:
        for part in self.parts:
            if part.name == name:
                return part
        raise PromptError(Problem(name, "is gone: the source has changed", "submit it again"))

    def _at(self, place: Place) -> Slice:
        return next(self._part(place.file).slices(place.start, place.rows), Slice(place.start, ()))

    def _changed(self, part: Rows, place: Place) -> PromptError:
        why, fix = part.changed
        what = f"rows {place.row + 1} to {place.row + place.rows} are not those that were submitted: {why}"
        return PromptError(Problem(part.name, what, fix))


def _unheld(part: Rows, rows: Mapping[int, PromptRow]) -> Iterator[tuple[str, BadRow]]:
    """Yields the rows, by their numbers, that JSON cannot hold."""
    for row, prompt in rows.items():
        try:
            serialise(prompt)
        except BadRow as wrong:
            yield part.location(row), wrong
