"""What a key of `model.py` says of itself beside its type and its meaning, and the list of all keys.

What a section says holds for all of its keys that do not say otherwise.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class Whose(Enum):
    """Whose value a key has. One that says neither is of no worker: the run's own machine reads it."""

    WORKERS = "shared"
    """Workers read it, and have the same value throughout the run: an invitation brings it along."""
    MACHINE = "own"
    """Each machine has a value of its own: no invitation brings one, and ranks of a learner may differ in it."""


WORKERS, MACHINE = Whose.WORKERS, Whose.MACHINE


class OnlyWith:
    """The condition of a key: the key `path` has one of these values or, without any, is neither 0 nor empty.

    Of several conditions of a key one is enough.
    """

    def __init__(self, path: str, *values: object) -> None:
        self.path, self.values = path, values

    def holds(self, config: BaseModel) -> bool:
        value = value_of(config, self.path)
        return value in self.values if self.values else bool(value)


class Section(BaseModel):
    """A section of the configuration: it has no other keys than its own, and its docstrings are their text."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    def left_out(self, key: str) -> Any:
        """Returns the value that a key of this section has if it is left out."""
        return type(self).model_fields[key].get_default(call_default_factory=True)


class Words:
    """The meaning of each word that a key may have, in columns of these heads: docs/configuration.md has the table."""

    def __init__(self, heads: Sequence[str], meanings: Mapping[str, Sequence[str]]) -> None:
        self.heads, self.meanings = heads, meanings


@dataclass(frozen=True)
class Key:
    """A key, or a section, by its path of names and dots.

    `listed`: it is a section that a file may have several times (`[[name]]`), or is within one. The path has no number
    then, and conditions name keys of the same table.
    """

    path: str
    field: FieldInfo
    whose: Whose | None
    conditions: tuple[OnlyWith, ...]
    listed: bool = False

    @property
    def section(self) -> type[BaseModel] | None:
        """The model of a section, which may be listed or optional; None of a key."""
        return section_of(self.field.annotation)

    @property
    def optional(self) -> bool:
        """True if it may be left out whole, which is not the same as a section without keys."""
        return NoneType in get_args(self.field.annotation)

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]


def fields_of(model: type[BaseModel], above: Key | None = None) -> Iterator[Key]:
    """Yields the keys and sections of the section `above`, in their order, and not those of the sections in it."""
    for name, field in model.model_fields.items():
        path = f"{above.path}.{name}" if above else name
        inherited = (above.whose, above.conditions) if above else (None, ())
        whose = next((mark for mark in field.metadata if isinstance(mark, Whose)), inherited[0])
        conditions = tuple(mark for mark in field.metadata if isinstance(mark, OnlyWith))
        listed = is_list(field.annotation) or (above is not None and above.listed)
        yield Key(path, field, whose, conditions or inherited[1], listed)


def section_of(kind: Any) -> type[BaseModel] | None:
    """Returns the model of the section, or of the listed or optional sections, of this type; None of another type."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    inner = [one for one in get_args(kind) if one not in (NoneType, Ellipsis)]
    return section_of(inner[0]) if len(inner) == 1 else None


def is_list(kind: Any) -> bool:
    """Returns whether this type is that of listed sections."""
    return Ellipsis in get_args(kind) and section_of(kind) is not None


def keys_of(model: type[BaseModel], above: Key | None = None) -> Iterator[Key]:
    """Yields every key of a model, those of its sections included."""
    for key in fields_of(model, above):
        if key.section:
            yield from keys_of(key.section, key)
        else:
            yield key


def value_of(config: BaseModel, path: str) -> Any:
    """Returns the value at a path of names and dots, in which no section is listed."""
    return attrgetter(path)(config)
