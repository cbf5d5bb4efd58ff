"""JSON documents, whose form follows from the types of a frozen dataclass.

- `decode` takes exactly what `encode` writes: no other keys, types, order or spacing. So two documents with the same
  bytes are equal, and two that differ have different bytes.
- What the types do not say, a class checks in `__post_init__`, with a `ValueError`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError, computed_field

T = TypeVar("T")


def encode(document: object) -> bytes:
    """Returns the JSON of a dataclass, its fields in order."""
    return _form(type(document)).dump_json(document)


def decode(kind: type[T], data: bytes, name: str) -> T:
    """Returns what `encode` made the JSON of. Raises a `ValueError`, which calls it `name`, for anything else."""
    try:
        found: T = _form(kind).validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{name} is malformed, or of another release: {f'{place}: ' if place else ''}{first['msg']}") from None
    if encode(found) != data:
        raise ValueError(f"{name} is not encoded as this release encodes it")
    return found


@cache
def _form(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def printed(*names: str, **renamed: str) -> Callable[[type[T]], type[T]]:
    """Gives the printed documents of a class these properties too, beside its fields; `renamed`: under another key."""

    def decorated(kind: type[T]) -> type[T]:
        for key, name in (dict(zip(names, names, strict=True)) | renamed).items():
            setattr(kind, name, computed_field(alias=key)(getattr(kind, name)))
        return kind

    return decorated
