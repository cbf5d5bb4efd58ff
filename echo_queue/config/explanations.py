"""Explains what pydantic finds wrong with a file of settings: one problem per key, with its fix."""

import difflib
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType, UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from echo_queue.config import Component, Config, Evaluation
from echo_queue.config.keys import section_of
from echo_queue.errors import Problem

CORRECTIONS = {
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "int_type": "write a whole number",
    "float_parsing": "write a number",
    "float_type": "write a number",
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "string_type": "write a text, in quotes",
    "tuple_type": "write a list",
    "dict_type": "write a table",
    "greater_than": "write more than {gt:g}",
    "greater_than_equal": "write {ge:g} or more",
    "less_than": "write less than {lt:g}",
    "less_than_equal": "write {le:g} or less",
    "too_long": "write at most {max_length}",
    "too_short": "write at least {min_length}",
    "bad_name": "write {name}",
    "finite_number": "write a finite number",
}
"""Type of pydantic's error → its fix, in which the error's context stands."""
NAMES_ELSEWHERE = {
    "batch_size": "learner.batch_groups",
    "beta": "learner.kl",
    "dataset": "prompts.source",
    "dataset_name": "prompts.source",
    "epsilon": "learner.correction.clip_low",
    "epsilon_high": "learner.correction.clip_high",
    "full_determinism": "learner.deterministic",
    "gradient_checkpointing": "learner.activation_checkpointing",
    "learning_rate": "learner.lr",
    "lr_scheduler_type": "learner.schedule",
    "max_completion_length": "model.max_new_tokens",
    "max_grad_norm": "learner.grad_clip",
    "max_prompt_length": "model.max_prompt_tokens",
    "max_staleness": "staleness.s",
    "max_steps": "learner.max_updates",
    "model_name_or_path": "model.base",
    "num_generations": "rollout.group_size",
    "num_train_epochs": "prompts.epochs",
    "offload_optimizer": "learner.offload",
    "reward_funcs": "environment.function",
    "steps_per_generation": "learner.mini_batches",
    "warmup_steps": "learner.warmup_updates",
}
"""Names of TRL's GRPOConfig and its like → the key of that meaning."""


def explain(
    error: ValidationError,
    values: dict[str, Any],
    model: type[BaseModel],
    reference: str,
    fixes: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Problem]:
    """Yields one problem per key: pydantic reports one entry per alternative of a union, all at the same key.

    `values`: the tables that `model` refused. `reference`: the document that lists the keys. `fixes`: pydantic's type
    of an error → what to do about it, beyond correcting the value.
    """
    explained: dict[str, Problem] = {}
    for entry in error.errors():
        location = _key_path(entry["loc"], values)
        where = ".".join(location)
        match entry["type"]:
            case "extra_forbidden":
                problem = Problem(where, "unknown key", _nearest(location, model, reference))
            case "missing" if isinstance(place := entry["loc"][-1], int):
                problem = Problem(where, f"{entry['input']!r} is too short", f"write at least {place + 1}")
            case "missing":
                problem = Problem(where, "is missing", "add it")
            case kind if kind in fixes:
                problem = Problem(where, entry["msg"], fixes[kind])
            case _:
                problem = _invalid(where, entry, reference, explained.get(where))
        explained[where] = problem
    yield from explained.values()


def _invalid(where: str, entry: Any, reference: str, before: Problem | None) -> Problem:
    """`before`: the problem of another alternative of the key's type."""
    if before:
        fix = f"{before.fix}, or {_fix(entry, reference)}"
        return Problem(where, f"{before.what}; or: {_reason(entry)}", fix)
    return Problem(where, f"{entry['input']!r} is not valid: {_reason(entry)}", _fix(entry, reference))


def _reason(entry: Any) -> str:
    """Returns pydantic's message as part of a sentence; of a pattern, which few can read, only that it does not fit."""
    message = "it has another form" if entry["type"] == "string_pattern_mismatch" else str(entry["msg"])
    return message[0].lower() + message[1:]


def _fix(entry: Any, reference: str) -> str:
    """Returns what to write instead, as far as the error's type tells."""
    context = entry.get("ctx", {})
    if entry["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        near = difflib.get_close_matches(str(entry["input"]), choices, n=1, cutoff=0.5)
        return f'did you mean "{near[0]}"?' if near else "write " + " or ".join(f'"{choice}"' for choice in choices)
    if entry["type"] == "tuple_type" and isinstance(entry["input"], dict):
        return f"write [[{entry['loc'][0]}]]: there may be several"
    return CORRECTIONS.get(entry["type"], f"{reference} says what it may be").format(**context)


KEY = "[key]"
"""Pydantic's word for the name of a table, behind that name."""


def _key_path(location: tuple[int | str, ...], values: dict[str, Any]) -> list[str]:
    """The part of pydantic's location that stands in the file, without the names of a union's alternatives.

    A listed section has its number in brackets; a list that is a value is named as a whole.
    """
    path: list[str] = []
    table: Any = values
    for place, part in enumerate(map(str, location), start=1):
        if isinstance(table, list):
            path[-1] += f"[{part}]"
            table = dict(enumerate(table)).get(int(part))
        elif part == KEY or (isinstance(table, dict) and part not in table and place < len(location)):
            continue
        else:
            path.append(part)
            table = table.get(part)
        if not (isinstance(table, dict) or _is_listed(table)):
            break
    return path


def _is_listed(value: Any) -> bool:
    """Returns whether this is what a file has under `[[name]]`, or a list of which some are such sections."""
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


NEAR = 0.7
"""How like a key must be to what was written, to be a misspelling of it: `reward_min` is none of `reward_weights`."""
SHORT = 4
"""Up to this length one wrong letter is a large part of a key."""


def _nearest(location: list[str], model: type[BaseModel], reference: str) -> str:
    wrong = location[-1].lower()
    inside: Any = model
    for part in location[:-1]:
        inside = _member(inside, part)
    known = list(inside.model_fields) if _is_model(inside) else []
    if model is Config and (elsewhere := NAMES_ELSEWHERE.get(wrong)):
        if inside not in (Evaluation, Component):
            return f"here it is called {elsewhere}"
        wrong = elsewhere.rpartition(".")[2]
    names = difflib.get_close_matches(wrong, known, n=1, cutoff=NEAR if len(wrong) > SHORT else 0.5)
    return f"did you mean {names[0]}?" if names else f"remove it; {reference} lists the keys"


def _member(inside: Any, part: str) -> Any:
    """Returns the type of a model's field, or of a mapping's values."""
    if _is_model(inside):
        field = inside.model_fields.get(part.partition("[")[0])
        return (section_of(field.annotation) or _section(field.annotation)) if field else None
    return get_args(inside)[1] if get_origin(inside) is Mapping else None


def _section(annotation: Any) -> Any:
    """Returns the model of a section that may be left out, and any other type as it is."""
    parts = get_args(annotation) if get_origin(annotation) is UnionType else ()
    return next((part for part in parts if _is_model(part)), annotation)


def _is_model(inside: Any) -> bool:
    return isinstance(inside, type) and issubclass(inside, BaseModel)
