"""A JSON document: a list of objects, or an object of columns, which are lists of one length. It is read as a whole."""

from collections.abc import Iterator
from json import JSONDecodeError

import orjson

from echo_queue.errors import Problem, PromptError
from echo_queue.submission.sources.files.file import File, Slice
from echo_queue.submission.sources.json_lines import BadLine, require_unchanged, why_no_json
from echo_queue.submission.sources.rows import kind_of

FORMS = 'write a list of objects, [{"prompt": "…"}, …]; pandas does with to_json(FILE, orient="records")'


class JsonDocument(File):
    """A JSON document, whose places are rows."""

    def slices(self, start: int, size: int) -> Iterator[Slice]:
        rows = self._rows()
        for place in range(start, len(rows), size):
            yield Slice(place, rows[place : place + size])

    def _rows(self) -> list[object]:
        with self.open() as file:
            data = file.read()
        try:
            value = orjson.loads(data)
            require_unchanged(data, value)
        except orjson.JSONDecodeError as error:
            raise self._no_json(data, error) from None
        except BadLine as bad:
            raise PromptError(Problem(self.name, *bad.args)) from None
        if isinstance(value, list):
            return value
        if not isinstance(value, dict):
            raise PromptError(Problem(self.name, f"is {kind_of(value)}, and no list", FORMS))
        return self._of_columns(value)

    def _of_columns(self, columns: dict[str, object]) -> list[object]:
        lists = {name: column for name, column in columns.items() if isinstance(column, list)}
        if other := next((name for name in columns if name not in lists), None):
            what = f"is an object whose `{other}` is {kind_of(columns[other])}, and no list of a column's values"
            raise PromptError(Problem(self.name, what, FORMS))
        lengths = {name: len(column) for name, column in lists.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{count} in {name}" for name, count in lengths.items())
            raise PromptError(Problem(self.name, f"has columns of different lengths: {told}", FORMS))
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]

    def _no_json(self, data: bytes, error: orjson.JSONDecodeError) -> PromptError:
        """Returns what is wrong, with the line on which the parser has stopped."""
        if "after document" in error.msg:
            what = "goes on after its first value"
            return PromptError(Problem(f"{self.name}:{error.lineno}", what, "if each line is a row, name it .jsonl"))
        lines = data.split(b"\n")
        line = lines[min(error.lineno, len(lines)) - 1]
        bad = why_no_json(line, JSONDecodeError(error.msg, "", error.colno - 1)) if data.strip() else None
        what, fix = bad.args if bad else ("is empty", FORMS)
        return PromptError(Problem(f"{self.name}:{error.lineno}", what, fix))
