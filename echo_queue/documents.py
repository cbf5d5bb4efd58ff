"""JSON documents, whose form follows from the types of a frozen dataclass.

- `decode` takes exactly what `encode` writes: no other keys, types, order or spacing. So two documents with the same
  bytes are equal, and two that differ have different bytes.
- What the types do not say, a class checks in `__post_init__`, with a `ValueError`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError, computed_field

T = TypeVar("T")


def encode(document: Any) -> bytes:
    """Returns the JSON of a dataclass, its fields in order."""
    kind: Any = type(document)
    return _form(kind).dump_json(document)


def decode(kind: type[T], data: bytes, name: str) -> T:
    """Returns what `encode` made the JSON of. Raises a `ValueError`, which calls it `name`, for anything else."""
    try:
        found: T = _form(cast(Any, kind)).validate_json(data, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        what = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
        raise ValueError(f"{name} is malformed, or of another release: {what}") from None
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
