"""The JSON form of the documents that `--json` prints, and its JSON Schema (draft 2020-12), both from the same types.

- A document is a frozen dataclass. Its fields become keys, and so do the functions that `COMPUTED` lists for its class.
- A version of the weights is a text, such as "1.40". What is not known is null, and never 0.
"""

import ast
import inspect
import math
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from echo_queue.capacity.estimate.lag import Lag
from echo_queue.capacity.estimate.learner_memory import LearnerMemory
from echo_queue.capacity.estimate.shared_card import SharedCard
from echo_queue.capacity.estimate.transfer import Broadcast
from echo_queue.capacity.estimate.worker_memory import WorkerMemory
from echo_queue.models.shape import ModelShape
from echo_queue.queue import Audit
from echo_queue.queue.generation_times import GenerationTimes
from echo_queue.records import Version
from echo_queue.reporting.metrics import Summary, UpdateMetrics

SIMPLE: Mapping[Any, Mapping[str, str]] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    date: {"type": "string", "format": "date"},
    datetime: {"type": "string", "format": "date-time"},
    Version: {"type": "string", "pattern": "^[0-9]+[.][0-9]+$"},
    Any: {},
}


def _t_bcast_s(of: Summary | UpdateMetrics) -> float | None:
    return of.t_bcast_s or None


def _kappa(of: Summary | UpdateMetrics) -> int | None:
    return of.kappa or None


def _least_t_train_s(lag: Lag) -> float | None:
    return lag.least_t_train_s if math.isfinite(lag.least_t_train_s) else None


def _getter(found: object) -> Callable[[Any], Any]:
    if not isinstance(found, property) or found.fget is None:
        raise TypeError(f"{found} is no property")
    return found.fget


COMPUTED: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    Audit: {name: _getter(getattr(Audit, name)) for name in ("difference", "misplaced", "ok")},
    Summary: {
        **{
            name: _getter(getattr(Summary, name))
            for name in ("tokens_per_s", "idle_share", "mean_lag", "max_lag", "sent_back_share")
        },
        "t_bcast_s": _t_bcast_s,
        "kappa": _kappa,
    },
    GenerationTimes: {name: _getter(getattr(GenerationTimes, name)) for name in ("groups", "p50_s", "p90_s", "p99_s")},
    UpdateMetrics: {"t_bcast_s": _t_bcast_s, "kappa": _kappa},
    ModelShape: {
        "parameters": _getter(ModelShape.total),
        "embedding": _getter(ModelShape.embedding),
        "active": _getter(ModelShape.active),
    },
    LearnerMemory: {
        name: _getter(getattr(LearnerMemory, name))
        for name in ("state", "peak", "checkpointed_peak", "needed", "checkpointed_needed")
    },
    SharedCard: {"suffices": _getter(SharedCard.suffices)},
    WorkerMemory: {name: _getter(getattr(WorkerMemory, name)) for name in ("kv_cache", "engine")},
    Broadcast: {"total_s": _getter(Broadcast.total_s)},
    Lag: {
        "holds": _getter(Lag.holds),
        "keeps_up": _getter(Lag.publications_keep_up),
        "least_t_train_s": _least_t_train_s,
    },
}
"""Keys that a class has beside its fields, or in their place, and the functions that say their values."""
OMITTED: Mapping[type, frozenset[str]] = {UpdateMetrics: frozenset({"trained_ids"})}
"""Fields that are not printed: the ids of an update are on the learner's machine alone."""


def plain(value: Any) -> Any:
    """Returns the JSON form of a document, or of a part of one. Raises `TypeError` for what has none."""
    match value:
        case Version() | Path():
            return str(value)
        case date():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value.value if isinstance(value, Enum) else value
        case Mapping():
            return {_key(name): plain(part) for name, part in value.items()}
    if names := _keys(type(value)):
        return {name: plain(read(value)) for name, read in names.items()}
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{type(value)} has no JSON form")
    return [plain(part) for part in value]


def _key(name: object) -> str:
    return f"{name:g}" if isinstance(name, float) else str(name)


def _keys(of: type) -> Mapping[str, Callable[[Any], Any]]:
    """Returns the keys of a dataclass or named tuple, and how their values are read; of other types none."""
    names = [one.name for one in fields(of)] if is_dataclass(of) else getattr(of, "_fields", ())
    left = OMITTED.get(of, frozenset())
    return {name: _reader(name) for name in names if name not in left} | dict(COMPUTED.get(of, {}))


def _reader(name: str) -> Callable[[Any], Any]:
    return lambda value: getattr(value, name)


def _meanings(kind: type) -> dict[str, dict[str, str]]:
    """Returns the description of each field that has a docstring of its own, below it in the source."""
    body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]).body
    found = {}
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = {"description": " ".join(text.split())}
    return found


class SchemaBuilder:
    """Makes JSON Schemas. Those of classes are in `definitions`, by the name of the class."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self._named: dict[str, type] = {}

    def schema_of(self, kind: Any) -> dict[str, Any]:
        """Returns the schema of a type. Raises `TypeError` for one that has no JSON form."""
        if kind in SIMPLE:
            return dict(SIMPLE[kind])
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if isinstance(kind, type) and _keys(kind):
            return self._class(kind)
        return self._generic(get_origin(kind), get_args(kind))

    def _class(self, kind: type) -> dict[str, Any]:
        if self._named.setdefault(kind.__name__, kind) is not kind:
            raise TypeError(f"{kind} and {self._named[kind.__name__]} have one name")
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}  # it may be a part of itself
            hints = get_type_hints(kind)
            computed = {name: get_type_hints(read)["return"] for name, read in COMPUTED.get(kind, {}).items()}
            meanings = _meanings(kind)
            properties = {
                name: self.schema_of((hints | computed)[name]) | meanings.get(name, {}) for name in _keys(kind)
            }
            self.definitions[kind.__name__] = {
                "description": " ".join((kind.__doc__ or "").split()),
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _generic(self, origin: Any, parts: tuple[Any, ...]) -> dict[str, Any]:
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.schema_of(part) for part in parts]}
        if origin is Literal:
            return {"enum": list(parts)}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.schema_of(parts[1])}
        if origin in (tuple, list, Sequence) and (len(parts) == 1 or parts[1] is Ellipsis):
            return {"type": "array", "items": self.schema_of(parts[0])}
        raise TypeError(f"{origin} of {parts} has no JSON form")
