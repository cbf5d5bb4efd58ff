"""Judges the columns of a Parquet file: each has a name of its own, and values that JSON holds."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from echo_queue.errors import Problem

if TYPE_CHECKING:
    from pyarrow import DataType, Field, RecordBatch, Schema

CONVERT = "convert that column to text or numbers, or leave it out"


def problems(file: str, schema: "Schema") -> Iterator[Problem]:
    """Yields what is wrong with the columns of `file`, whatever its rows hold."""
    for name in _repeated(schema.names):
        yield Problem(file, f"has several columns called `{name}`", "rename or remove all but one")
    for field in schema:
        yield from _of_type(file, f"`{field.name}`", field.type)


def unreadable(batch: "RecordBatch") -> tuple[int, str, str] | None:
    """Returns (row of the batch, column, why) of the first value that is none of Python's, or None."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for row, value in enumerate(column):
            try:
                value.as_py()
            except ValueError as error:
                return row, name, str(error)
    return None


def _of_type(file: str, column: str, kind: "DataType") -> Iterator[Problem]:
    """Yields what is wrong with the values of a column, and of what it consists of."""
    from pyarrow import types

    if types.is_dictionary(kind):
        yield from _of_type(file, column, kind.value_type)
    elif types.is_struct(kind):
        for name in _repeated(field.name for field in kind):
            yield Problem(file, f"has several fields called `{name}` in {column}", "rename or remove all but one")
        yield from _of_fields(file, column, kind)
    elif types.is_nested(kind):  # lists of all kinds, and maps, which are read as lists of pairs
        yield from _of_fields(file, column, (kind.field(number) for number in range(kind.num_fields)))
    elif not any(holds(kind) for holds in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)) and (
        "string" not in str(kind)
    ):
        yield Problem(file, f"has values of the type {kind} in {column}, which JSON cannot hold", CONVERT)


def _of_fields(file: str, column: str, fields: Iterable["Field"]) -> Iterator[Problem]:
    for field in fields:
        yield from _of_type(file, column, field.type)


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
