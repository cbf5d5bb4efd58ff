"""Brings a prompt source to the queue: scans it, declares the set, and sends one message per chunk.

- A set is declared only after every row was checked, and sent only after it was declared. From then on Redis knows
  which chunks are missing, and any Celery worker can finish the submission that this process began.
- A set that has arrived whole needs its source no more (`declare_within_run`): a run goes on whatever has become of it.
"""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from echo_queue.config import Config, Prompts
from echo_queue.config.explanations import explain
from echo_queue.connections.endpoints import EMBEDDED, own_store
from echo_queue.errors import ConfigError, DeadlineError, Problem, PromptError, UnfitPromptError
from echo_queue.queue import Chunk, PromptSet, SubmitterQueue
from echo_queue.queue.submitter import digest_of
from echo_queue.records import Message, PromptRow
from echo_queue.submission.celery.messages import send
from echo_queue.submission.length_features import refuse_featureless
from echo_queue.submission.length_limits import PromptLimits, limits_of, refuse_unfit
from echo_queue.submission.needed_columns import needed_columns, refuse_lacking, refuse_unreadable
from echo_queue.submission.progress import Progress, Report, Submitted
from echo_queue.submission.sources.registry import open_source
from echo_queue.submission.sources.source import S3, PromptSource, is_generated, parts_of, spell

if TYPE_CHECKING:
    from celery import Celery

SAMPLE_ROWS = 1_000
LEARNER_POLL_S = 0.2


def chosen(config: Config, source: str | None = None, set: str | None = None, **changes: Any) -> Sequence[Prompts]:
    """Returns the sets to submit, in this order: if nothing is given, every held-out set and then [prompts].

    The first version answers held-out sets before anything is trained, so they come first. Raises `ConfigError`.
    """
    if source is None and set is None and not any(value is not None for value in changes.values()):
        return *held_out_sets(config), config.prompts
    return (choose(config, source, set, **changes),)


def held_out_sets(config: Config) -> Sequence[Prompts]:
    """Returns the sets of the evaluations, as if they were to train on."""
    chunk = config.prompts.chunk
    return tuple(
        Prompts(set=one.name, source=one.source, options=one.options, map=one.map, chunk=chunk)
        for one in config.evaluation
    )


def choose(config: Config, source: str | None = None, set: str | None = None, **changes: Any) -> Prompts:
    """Returns the configuration's [prompts], or the evaluation called `set`, with the given values in their place.

    Raises `ConfigError`.
    """
    configured = next((prompts for prompts in held_out_sets(config) if prompts.set == set), config.prompts)
    if configured is not config.prompts and (wrong := sorted(changes.keys() - {"options"})):
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


def check_first_rows(config: Config, prompts: Prompts) -> Sequence[PromptRow]:
    """Checks the first rows of a configured set, before a run starts any process, and returns them.

    Raises `PromptError`.
    """
    with told_in_section(config, prompts.set):
        source = opened(config, prompts)
        chunk, rows = _first_rows(source, min(prompts.chunk, SAMPLE_ROWS))
        refuse_unfit(_limits(config), source, chunk, rows)
        refuse_featureless(prompts.length_feature, source, chunk, rows)
        refuse_unreadable(needed_columns(config.environment_of(prompts.set)), source, chunk, rows)
    return rows


@contextmanager
def told_in_section(config: Config, set: str) -> Iterator[None]:
    """Lets a `PromptError` about a set name the keys of that set's own section."""
    try:
        yield
    except PromptError as error:
        raise type(error)(*(in_section(config, set, problem) for problem in error.problems)) from None


def in_section(config: Config, set: str, problem: Problem) -> Problem:
    """Returns the problem of a set with the place at which the set stands in the configuration."""
    numbers = (number for number, evaluation in enumerate(config.evaluation) if evaluation.name == set)
    if (number := next(numbers, None)) is None:
        return problem
    section, _, key = problem.where.partition(".")
    places = {"prompts": f"evaluation[{number}].{key}", "environment": f"evaluation[{number}].{problem.where}"}
    return replace(problem, where=places.get(section, problem.where))


def first_prompts(config: Config, count: int = 3) -> Sequence[str]:
    """Returns the first prompts as the model will read them; chats as they are where nothing is known of the model.

    Raises `PromptError`.
    """
    source, limits = opened(config, config.prompts), _limits(config)
    chunk, rows = next(iter(source.scan(count)))
    encoding = limits.encoding if limits and limits.renders else None
    return [
        encoding.text(row.prompt) if encoding else row.prompt if isinstance(row.prompt, str) else _plain(row.prompt)
        for row in rows or source.read(chunk)
    ]


def _plain(messages: Sequence[Message]) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def opened(config: Config, prompts: Prompts) -> PromptSource:
    """Returns the source of a set. Code is called only if the configuration names it for that set."""
    name = spell(prompts.source, prompts.options, prompts.map)
    store = own_store(config, "submitter") if prompts.source.startswith(S3) else None
    return open_source(name, config.source_of(prompts.set), store)


def _first_rows(source: PromptSource, size: int) -> tuple[Chunk, Sequence[PromptRow]]:
    """Returns the first rows, up to `size`; one of a generated set, which is not read while it is scanned."""
    chunk, rows = next(iter(source.scan(size)))
    if rows:
        return chunk, rows
    chunk, _ = next(iter(source.scan(1)))
    return chunk, source.read(chunk)


def declare_and_send(
    config: Config, queue: SubmitterQueue, app: "Celery", prompts: Prompts, report: Report = lambda _: None
) -> Submitted:
    """Scans, declares and sends a set, without waiting for its chunks. One that has an evaluation's name is held out.

    Raises `PromptError`, always before the set is declared, and `ServiceError`.
    """
    source, chunks = scan(config, prompts, report)
    return _declare_and_send(config, queue, app, _declared(config, prompts, source.name), chunks)


def declare_within_run(
    config: Config, queue: SubmitterQueue, app: "Celery", prompts: Prompts, report: Report = lambda _: None
) -> Submitted:
    """Does the same as a part of `echo-queue run`, which may be the continuation of an earlier one.

    A set that has arrived whole stays as it is if its source is gone or has other prompts by now; the answer says so.
    Any other set is declared once a learner has told Redis whose prompts checkpoints hold. Raises `DeadlineError` if
    none does within `queue.stall_deadline_s`, and what `declare_and_send` raises.
    """
    counts = queue.submission_counts(prompts.set)
    if counts is not None and counts.whole:
        try:
            return declare_and_send(config, queue, app, prompts, report)
        except PromptError as error:
            ignored = tuple(_left(config, prompts, problem) for problem in _keep(config, queue, prompts, error))
            return Submitted(prompts.set, counts.prompts, counts.chunks, False, ignored)
    source, chunks = scan(config, prompts, report)
    await_learner(config, queue)
    return _declare_and_send(config, queue, app, _declared(config, prompts, source.name), chunks)


def await_learner(config: Config, queue: SubmitterQueue) -> None:
    """Returns once a learner has begun. Raises `DeadlineError` if none does within `queue.stall_deadline_s`."""
    give_up = time.monotonic() + config.queue.stall_deadline_s
    while not queue.learner_has_begun():
        if time.monotonic() > give_up:
            what = f"no learner has begun within {config.queue.stall_deadline_s:.0f} s"
            raise DeadlineError(Problem("learner", what, "read logs/learner.log"))
        time.sleep(LEARNER_POLL_S * random.uniform(0.5, 1.0))


def scan(config: Config, prompts: Prompts, report: Report) -> tuple[PromptSource, list[Chunk]]:
    """Returns the source and its chunks, once every row was checked. Raises `PromptError`."""
    with told_in_section(config, prompts.set):
        return _scan(config, prompts, report)


def _scan(config: Config, prompts: Prompts, report: Report) -> tuple[PromptSource, list[Chunk]]:
    source = opened(config, prompts)
    limits = _limits(config)
    needed = needed_columns(config.environment_of(prompts.set))

    def refuse(chunk: Chunk, rows: Sequence[PromptRow]) -> None:
        refuse_unfit(limits, source, chunk, rows)
        refuse_featureless(prompts.length_feature, source, chunk, rows)
        refuse_lacking(needed, source, chunk, rows)

    chunks: list[Chunk] = []
    gc.freeze()  # Objects alive by now are no garbage; tracing them again and again takes a third of a scan.
    try:
        for chunk, rows in source.scan(prompts.chunk):
            if not (rows or chunks):
                refuse(*_first_rows(source, 1))
            refuse(chunk, rows)
            chunks.append(chunk)
            report(Progress(prompts.set, scanned=chunk.first + chunk.count))
    finally:
        gc.unfreeze()
    return source, chunks


def _limits(config: Config) -> PromptLimits | None:
    limits = limits_of(Path(config.base_model), config.model.max_prompt_tokens)
    if limits is not None and (problem := limits.unknown_stop()):
        raise UnfitPromptError(problem)
    return limits


def _declared(config: Config, prompts: Prompts, source: str) -> PromptSet:
    seed = config.run.seed
    if config.evaluation_of(prompts.set):
        return PromptSet(prompts.set, source, order="held_out", seed=seed)
    return PromptSet(prompts.set, source, prompts.epochs, prompts.priority, prompts.order, seed, prompts.length_feature)


def _declare_and_send(
    config: Config, queue: SubmitterQueue, app: "Celery", declared: PromptSet, chunks: Sequence[Chunk]
) -> Submitted:
    try:
        new = queue.declare(declared, chunks)
    except PromptError as error:
        if config.evaluation_of(declared.name) is None:
            raise
        told = Problem("prompts.source", error.problems[0].what, _another_name(declared.name))
        raise PromptError(in_section(config, declared.name, told)) from None
    total = chunks[-1].first + chunks[-1].count
    status = None if new else queue.submission_status(declared.name)
    send(app, declared.name, declared.source, status.waiting if status else chunks)
    return Submitted(declared.name, total, len(chunks), new)


def changed_source(config: Config, digest: str) -> bool:
    """Returns whether the configured source holds other prompts than those whose digest Redis has.

    A source that cannot be read holds none: a set that has arrived does not need it.
    """
    prompts = config.prompts
    try:
        source = opened(config, prompts)
        return digest_of([chunk for chunk, _ in source.scan(prompts.chunk)]) != digest
    except PromptError:
        return False


def left_as_it_is(config: Config, prompts: Prompts, why: str) -> Problem:
    """Returns what `echo-queue run` says of a source that it does not submit, and the ways to have it trained."""
    run = config.run
    what = f"set {prompts.set} has arrived whole and stays as it is; {prompts.source} is not submitted again: {why}"
    if config.evaluation_of(prompts.set):
        return in_section(config, prompts.set, Problem("prompts.source", what, _another_name(prompts.set)))
    embedded = EMBEDDED == config.redis.url == config.store.url
    anew = f"ECHO_QUEUE_RUN__DIR={run.dir}-2"
    anew = anew if embedded else f"ECHO_QUEUE_RUN__NAME={run.name}-2 {anew}"
    fix = (
        f"to train further prompts, write them alone into a file and submit it as a set of another name: "
        f"`ECHO_QUEUE_PROMPTS__SET={prompts.set}-2 ECHO_QUEUE_PROMPTS__SOURCE=FILE echo-queue run CONFIG`; "
        f"to train {prompts.source} alone, begin another run: `{anew} echo-queue run CONFIG`"
    )
    return Problem("prompts.source", what, fix)


def _another_name(set: str) -> str:
    return f"to evaluate other prompts, give that evaluation another name, such as {set}-2"


def _left(config: Config, prompts: Prompts, problem: Problem) -> Problem:
    why = problem.what if problem.what.startswith(f"{prompts.set}: ") else f"{problem.where} {problem.what}"
    return left_as_it_is(config, prompts, why.removeprefix(f"{prompts.set}: "))


def _keep(config: Config, queue: SubmitterQueue, prompts: Prompts, error: PromptError) -> tuple[Problem, ...]:
    """Gives a set that has arrived its present priority. Returns what keeps its source from being submitted."""
    try:
        queue.declare(_declared(config, prompts, prompts.source), ())
    except PromptError as further:
        return tuple(dict.fromkeys((*error.problems, *further.problems)))
    return error.problems
