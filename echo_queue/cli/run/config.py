"""The commands `config check`, which reports all problems of a file, and `config reference`, which lists the keys."""

import json
import shutil
import tempfile
import textwrap
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.markup import escape

from echo_queue import config as configuration
from echo_queue.capacity.estimate import refusals
from echo_queue.cli.documents import CheckDocument
from echo_queue.cli.inspect.live.watcher import monitor
from echo_queue.cli.output import print_json
from echo_queue.cli.run import placement, preflight
from echo_queue.cli.run.preflight import For
from echo_queue.config import loading
from echo_queue.config.keys import Key, OnlyWith, Words, fields_of, is_list
from echo_queue.config.toml_text import value_text
from echo_queue.connections.endpoints import EMBEDDED, START_EMBEDDED, services_dir
from echo_queue.errors import EchoQueueError, Problem, ServiceError
from echo_queue.launch.problem_output import WARNING, print_problems
from echo_queue.queue.counts import counted, duration
from echo_queue.queue.run_rules import RULE_KEYS
from echo_queue.submission.configured_sets import chosen, trained_sets
from echo_queue.submission.declaration import check_first_rows, first_prompts

LEAST_FREE_BYTES = 1 << 30
WITHOUT_DEFAULT = frozenset({"run", *(f"run.{key}" for key in loading.STAND_INS)})
"""What has stand-ins in the configuration where it is wrong or missing."""

SHOWN_CHARACTERS = 1_000
"""Characters of a prompt that are printed."""

WRONG_STORE = {"store.url", "store.bucket"}

HEADER = """# Configuration

One TOML file describes a run. An environment variable overrides a key: `ECHO_QUEUE_STALENESS__S=2` means `s = 2` in
`[staleness]`. So does a flag, for one command and all that it starts: `echo-queue run my.toml --staleness.s=2`. A
number names one of the sections `[[evaluation]]`, of which 0 is the first: `--evaluation.0.samples=4`. Tables and lists
are written as in TOML or JSON. Secrets are never in the file ([rights](rights.md#secrets)). Relative paths start at the
directory in which the command is started. `echo-queue config check CONFIG` reports at once all that would end a run
here: keys, model, packages, the environment's function, prompts and their columns, services. With `--for worker`,
`learner` or `submitter` it asks only for what that machine does.

The column "machines" says what a machine of workers needs. A *shared* key has one value for all workers of a run, and
an [invitation](join.md) brings it along; an *own* key has a value for each machine, which no invitation sets. A *rule*
is kept in Redis, and every role obeys it as the learner that began last had it.

`echo-queue config reference` writes this page from the sections in `echo_queue/config/`. Change it there.
"""


class Report(NamedTuple):
    """A configuration file, if it can be read; what must be mended before it runs, and what weakens a promise."""

    config: configuration.Config | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()


def examine(path: Path, role: For = For.run) -> Report:
    """Reports on the file, and on all that `role` would meet here: model, packages, environment, prompts,
    directory and services."""
    from echo_queue.launch.servers import inspect

    config, problems = loading.examine(path)
    if config is None:
        return Report(None, problems)
    named = {problem.where for problem in problems}
    crowded = placement.refusals(config) if role is For.run else ()
    found = (*refusals(config), *crowded, *preflight.problems(config, role))
    problems += tuple(problem for problem in found if problem.where not in named)
    if named & WITHOUT_DEFAULT:  # stand-ins, which no directory and no service need know
        return Report(config, problems)
    if of_directory := tuple(_directory_problems(config.run.dir)):
        return Report(config, problems + of_directory)
    services = inspect(config, preflight.ROLES.get(role))
    placed = placement.sharing(config) if role is For.run else _services_elsewhere(config)
    warnings = (*services.warnings, *placed, *preflight.warnings(config, role))
    store = WRONG_STORE if WRONG_STORE & named else set()  # then nobody need ask it
    of_services = tuple(problem for problem in services.refusals if problem.where not in store)
    return Report(config, problems + of_services, warnings)


def _services_elsewhere(config: configuration.Config) -> Iterator[Problem]:
    """Warns of embedded services that never started here: a role of another machine could not reach them."""
    if EMBEDDED in (config.redis.url, config.store.url) and not services_dir(config).is_dir():
        what = "embedded services have not started on this machine, and they serve no other machine"
        yield Problem("services", what, START_EMBEDDED)


def _directory_problems(directory: Path) -> Iterator[Problem]:
    """Checks that the run's directory can be written and has free space, since embedded services need both.

    A directory that is not there yet is not made: the folder in which it would be made is asked.
    """
    try:
        place = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        yield Problem("run.dir", f"{directory} cannot be written: {error.strerror}", "name a directory that you own")
        return
    if free < LEAST_FREE_BYTES:
        what = f"the disk of {directory} has {free / 2**20:,.0f} MiB free; a run needs {LEAST_FREE_BYTES / 2**20:,.0f}"
        yield Problem("run.dir", what, "free space there, or name a directory on another disk")


def check(path: Path, role: For, *, as_json: bool) -> int:
    """Prints all problems and warnings. Returns the exit code, 2 if there is a problem."""
    config, problems, warnings = examine(path, role)
    if config and not problems:
        warnings += (*_unprepared(config, role), *_absent_source(config, role))
    if as_json:
        known = config is not None and WITHOUT_DEFAULT.isdisjoint(problem.where for problem in problems)
        values = config.model_dump(mode="json") if config and known else None
        print_json(CheckDocument(not problems, problems, warnings, values))
        return 2 if problems else 0
    print_problems(problems)
    print_problems(warnings, sign=WARNING)
    if not problems:
        found = f"nothing ends it, with {counted(len(warnings), 'warning')} above" if warnings else "no problems found"
        for line in (f"{path}: {found}", *_component_lines(config, role), *_evaluation_lines(config, role)):
            Console(highlight=False).print(f"[green]✓[/] {escape(line)}", soft_wrap=True)
        if config and role in (For.run, For.submitter):
            _show_prompts(config)
    return 2 if problems else 0


def _show_prompts(config: configuration.Config) -> None:
    """Prints the first prompts of each set as the model will read them, if its source can still be read."""
    for prompts in trained_sets(config):
        of = f" of {prompts.set}" if config.mixture else ""
        with suppress(EchoQueueError):
            for number, text in enumerate(first_prompts(config, prompts), start=1):
                shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
                lines = textwrap.indent(shown, "    | ", lambda line: True)
                print(f"  prompt {number}{of}, as the model reads it:\n{lines}")


def _component_lines(config: configuration.Config | None, role: For) -> Iterator[str]:
    """Yields each component's share of the prompts, and where its prompts come from."""
    if not config or role not in (For.run, For.submitter):
        return
    for component in config.mixture:
        source = f"from {component.source}" if component.source else "of sets that are submitted later"
        yield f"component {component.name}: {config.shares[component.name]:.1%} of the prompts, {source}"


def _evaluation_lines(config: configuration.Config | None, role: For) -> Iterator[str]:
    """Yields what is evaluated, and when, where the first prompts of each evaluation were checked."""
    for evaluation in config.evaluation if config and role in (For.run, For.submitter) else ():
        every = [counted(evaluation.every_updates, "update")] if evaluation.every_updates else []
        every += [duration(evaluation.every_s)] if evaluation.every_s else []
        when = f"before the first update, every {' or '.join(every)}," if every else "before the first update"
        answers = counted(evaluation.samples, "answer")
        yield f"evaluation {evaluation.name}: {answers} to each prompt of {evaluation.source}, {when} and at the end"


def _unprepared(config: configuration.Config, role: For) -> Iterator[Problem]:
    """Warns of a server of the user's own, which answers, and on which no single role can begin yet."""
    if role is not For.run or config.redis.url == EMBEDDED:
        return
    try:
        monitor(config).figures()
    except ServiceError:
        what = f"nobody has prepared {config.redis.url} for run {config.run.name}"
        fix = "`echo-queue run` does it itself; before single roles run `echo-queue prepare CONFIG` once, as user admin"
        yield Problem("redis.url", what, fix)


def _absent_source(config: configuration.Config, role: For) -> Iterator[Problem]:
    """Warns of a source that cannot be read in a run that has made updates, which may need it no more."""
    if role not in (For.run, For.submitter) or not (config.run.dir / "metrics.jsonl").exists():
        return
    for prompts in chosen(config):
        try:
            check_first_rows(config, prompts)
        except EchoQueueError as error:
            for problem in error.problems:
                yield replace(problem, fix=f"{problem.fix}; a run that has its prompts already goes on without it")


def reference() -> str:
    """Returns the page with every key of the model, one table per section."""
    return HEADER + "".join(_section(configuration.Config))


def _section(model: type[BaseModel], above: Key | None = None) -> Iterator[str]:
    found = tuple(fields_of(model, above))
    sections = [key for key in found if key.section and not key.optional]  # an optional one has another's keys
    keys = [key for key in found if key not in sections]
    if above:
        yield f"\n## `{f'[[{above.path}]]' if is_list(above.field.annotation) else f'[{above.path}]'}`\n\n"
        yield f"{' '.join(model.__doc__.split())}\n\n" if model.__doc__ else ""
    if keys:
        yield "| key | type | default | machines | meaning |\n| --- | --- | --- | --- | --- |\n"
    for key in keys:
        name = key.path.rpartition(".")[2]
        yield f"| `{name}` | {_type(key.field)} | {_default(key.field)} | {_machines(key)} | {_meaning(key)} |\n"
    for key in keys:
        yield from _words(key)
    for key in sections:
        if key.section:
            yield from _section(key.section, key)


def _words(key: Key) -> Iterator[str]:
    """Yields the table of what the words of a key mean, if it has one."""
    for words in (mark for mark in key.field.metadata if isinstance(mark, Words)):
        name = key.path.rpartition(".")[2]
        yield f"\n| `{name}` | {' | '.join(words.heads)} |\n|{' --- |' * (1 + len(words.heads))}\n"
        yield from (f"| `{word}` | {' | '.join(cells)} |\n" for word, cells in words.meanings.items())


def _machines(key: Key) -> str:
    return ", ".join([*([key.whose.value] if key.whose else []), *(["rule"] if key.path in RULE_KEYS else [])])


def _meaning(key: Key) -> str:
    """Returns the text of a key, and what it is used with."""
    said = " ".join((key.field.description or "").split()).replace("|", "\\|")
    needs = " or ".join(_need(key, condition) for condition in key.conditions)
    return f"{said} Only with {needs}." if needs else said


def _need(key: Key, condition: OnlyWith) -> str:
    other = condition.path.removeprefix(f"{key.parent}.")
    first, *others = map(value_text, condition.values or ("",))
    return " or ".join((f"`{other} = {first}`" if condition.values else f"`{other}`", *(f"`{one}`" for one in others)))


def _type(field: FieldInfo) -> str:
    bounds = [_bound(item) for item in field.metadata]
    return " ".join([_name(field.annotation), *filter(None, bounds)])


def _bound(item: Any) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return " ".join(f"{sign} {_number(getattr(item, name))}" for name, sign in signs.items() if hasattr(item, name))


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _name(annotation: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path", type(None): ""}
    names |= {configuration.Environment: "section"}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin is Annotated:
        return " ".join(filter(None, [_name(arguments[0]), *map(_bound, getattr(arguments[1], "metadata", ()))]))
    if origin in (Union, types.UnionType):
        return " or ".join(filter(None, map(_name, arguments)))
    if origin in (dict, Mapping):
        return "table"
    if origin is tuple or origin is list:
        return "list"
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value in (None, "") else f"`{json.dumps(value, ensure_ascii=False, default=str)}`"
