"""The sets of prompts that a configuration names: those of its evaluations, then those to train on.

What is trained is [prompts] or, in a mixture, a set of each component that names a source. A set of a further name
belongs to the component that its name begins with, and takes from it what is not given.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from echo_queue.config import Component, Config, Evaluation, Prompts
from echo_queue.config.explanations import explain
from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.submission.sources.source import GENERATED, is_generated, parts_of

ALLOWED_FOR_EVALUATION = {"options"}
"""What may be given beside the source and the name of a set that is held out."""


def chosen(config: Config, source: str | None = None, set: str | None = None, **changes: Any) -> Sequence[Prompts]:
    """Returns the sets to submit, in this order: if nothing is given, every held-out set and then those to train on.

    The first version answers held-out sets before anything is trained, so they come first. Raises `ConfigError`, also
    for a mixture in which no component names a source.
    """
    if source is None and set is None and not any(value is not None for value in changes.values()):
        trained = trained_sets(config)
        if not trained:
            what, first = "no component names a source, so there are no prompts to submit", config.mixture[0].name
            raise ConfigError(Problem("mixture", what, f"name one, or give it here: submit CONFIG FILE --set {first}"))
        return *held_out_sets(config), *trained
    return (choose(config, source, set, **changes),)


def held_out_sets(config: Config) -> Sequence[Prompts]:
    """Returns the sets of the evaluations, as if they were to train on."""
    return tuple(_first_set(config, evaluation) for evaluation in config.evaluation)


def trained_sets(config: Config) -> Sequence[Prompts]:
    """Returns the sets to train on: [prompts] or, in a mixture, the first set of each component that has a source."""
    if not config.mixture:
        return (config.prompts,)
    return tuple(_first_set(config, component) for component in config.mixture if component.source)


def unmade(config: Config) -> Iterator[Problem]:
    """Yields what keeps `model.base = "init"` from making a model: it is warmed up on prompts that code makes."""
    sets, choice = trained_sets(config), "name a model folder or a hub model in model.base"
    if not sets:
        yield Problem("model.base", '"init" makes a model for generated sets, but no component names a source', choice)
    for prompts in sets:
        if not is_generated(prompts.source):
            key = in_section(config, prompts.set, Problem("prompts.source", "", "")).where
            what = f'"init" makes a model for a generated set, but {key} is {prompts.source!r}'
            yield Problem("model.base", what, f"{choice}, or set {key} to {GENERATED}DATASET")


def _first_set(config: Config, section: Evaluation | Component) -> Prompts:
    """Returns the set of an evaluation or a component, whose keys have the names that they have in [prompts]."""
    own = {key: getattr(section, key) for key in Prompts.model_fields if key in type(section).model_fields}
    return Prompts(set=section.name, chunk=config.prompts.chunk, **own)


def choose(config: Config, source: str | None = None, set: str | None = None, **changes: Any) -> Prompts:
    """Returns what is configured for this set, with the given values in its place: the evaluation or the component to
    which its name belongs, or [prompts].

    Raises `ConfigError`.
    """
    configured = _configured(config, set)
    if config.evaluation_of(configured.set) and (wrong := sorted(changes.keys() - ALLOWED_FOR_EVALUATION)):
        untrained = (Problem(f"prompts.{key}", "is for prompts to train on", "leave it out") for key in wrong)
        raise ConfigError(*(in_section(config, configured.set, problem) for problem in untrained))
    given = {"source": source, "set": set} | changes
    if source is not None and source != configured.source:
        given.setdefault("options", {})
        if is_generated(parts_of(source)[0]):
            given.setdefault("map", {})
    values = configured.model_dump() | {key: value for key, value in given.items() if value is not None}
    try:
        return Prompts.model_validate(values)
    except ValidationError as error:
        found = explain(error, values, Prompts, "docs/configuration.md")
        raise ConfigError(*(replace(problem, where=f"prompts.{problem.where}") for problem in found)) from None


def _configured(config: Config, set: str | None) -> Prompts:
    """Returns the configured set of this name, or the one that a set of this name takes its values from."""
    if set is not None and (section := config.section_of(set)):
        return _first_set(config, section)
    if not config.mixture:
        return config.prompts
    what = "is missing" if set is None else f"{set} is the name of no component's set"
    first = config.mixture[0].name
    fix = f"call it like its component ({names_of_components(config)}), or with a dot and more behind: {first}.more"
    raise ConfigError(Problem("prompts.set", f"{what}, and the run has a mixture", fix))


def names_of_components(config: Config) -> str:
    return ", ".join(component.name for component in config.mixture)


@contextmanager
def told_in_section(config: Config, set: str) -> Iterator[None]:
    """Lets a `PromptError` about a set name the set, and the keys of its own section."""
    try:
        yield
    except PromptError as error:
        told = type(error)(*(in_section(config, set, problem) for problem in error.problems))
        told.set = set
        raise told from None


def in_section(config: Config, set: str, problem: Problem) -> Problem:
    """Returns the problem of a set with the place at which the set stands in the configuration."""
    if (table := _table_of(config, set)) is None:
        return problem
    section, _, key = problem.where.partition(".")
    places = {"prompts": f"{table}.{key}", "environment": f"{table}.{problem.where}"}
    return replace(problem, where=places.get(section, problem.where))


def _table_of(config: Config, set: str) -> str | None:
    """Returns the listed section that a set belongs to, with its number."""
    if evaluation := config.evaluation_of(set):
        return f"evaluation[{config.evaluation.index(evaluation)}]"
    if component := config.component_of(set):
        return f"mixture[{config.mixture.index(component)}]"
    return None
