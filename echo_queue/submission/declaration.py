"""Brings a prompt source to the queue: scans it, declares the set, and sends one message per chunk.

- A set is declared only after every row was checked, and sent only after it was declared. From then on Redis knows
  which chunks are missing, and any Celery worker can finish the submission that this process began.
- All components of a mixture are declared before a chunk of any is sent: the queue waits for those that are on their
  way, so that none is trained alone because another takes longer to read.
- A set that has arrived whole needs its source no more within a run: that goes on whatever has become of it.
"""

import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from echo_queue.config import Config, Prompts
from echo_queue.connections.endpoints import EMBEDDED, own_store
from echo_queue.errors import DeadlineError, Problem, PromptError, UnfitPromptError
from echo_queue.queue import Chunk, PromptSet, SubmissionCounts, SubmitterQueue
from echo_queue.queue.submitter import digest_of
from echo_queue.records import Message, PromptRow
from echo_queue.submission.celery.messages import send
from echo_queue.submission.configured_sets import in_section, told_in_section
from echo_queue.submission.length_features import refuse_featureless
from echo_queue.submission.length_limits import PromptLimits, limits_for, refuse_unfit
from echo_queue.submission.needed_columns import needed_columns, refuse_lacking, refuse_unreadable
from echo_queue.submission.progress import Progress, Report, Submitted
from echo_queue.submission.sources.registry import open_source
from echo_queue.submission.sources.source import S3, PromptSource, spell

if TYPE_CHECKING:
    from celery import Celery

SAMPLE_ROWS = 1_000
LEARNER_POLL_S = 0.2


def check_first_rows(config: Config, prompts: Prompts) -> Sequence[PromptRow]:
    """Checks the first rows of a configured set, before a run starts any process, and returns them.

    Raises `PromptError`.
    """
    with told_in_section(config, prompts.set):
        source = opened(config, prompts)
        chunk, rows = _first_rows(source, min(prompts.chunk, SAMPLE_ROWS))
        refuse_unfit(_limits(config, prompts.set), source, chunk, rows)
        refuse_featureless(prompts.length_feature, source, chunk, rows)
        refuse_unreadable(needed_columns(config.environment_of(prompts.set)), source, chunk, rows)
    return rows


def first_prompts(config: Config, prompts: Prompts, count: int = 3) -> Sequence[str]:
    """Returns the first prompts of a set as the model will read them; chats as they are where nothing is known of it.

    Raises `PromptError`.
    """
    source, limits = opened(config, prompts), _limits(config, prompts.set)
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


@dataclass(frozen=True)
class ScannedSet:
    """A set whose rows have all been checked, and that is still to be declared. `source`: as `spell` has it.

    `arrived`: it has arrived whole and stays as it is, should its source now hold something else. `unread`: why that
    source cannot be read.
    """

    prompts: Prompts
    source: str
    chunks: Sequence[Chunk]
    arrived: SubmissionCounts | None = None
    unread: PromptError | None = None


@dataclass(frozen=True)
class DeclaredSet:
    """A set that Redis knows, and the chunks of it that are to be sent."""

    submitted: Submitted
    source: str = ""
    waiting: Sequence[Chunk] = ()


def declare_and_send(
    config: Config,
    queue: SubmitterQueue,
    app: "Celery",
    sets: Sequence[Prompts],
    report: Report = lambda _: None,
    *,
    within_run: bool = False,
) -> list[Submitted]:
    """Scans, declares and sends sets, without waiting for their chunks. One that has an evaluation's name is held out.

    `within_run`: it is a part of `echo-queue run`, which may be the continuation of an earlier one. A set that has
    arrived whole then stays as it is if its source is gone or has other prompts by now; the answer says so. Any other
    set is declared once a learner has told Redis whose prompts checkpoints hold.

    Raises `PromptError`, always before the set is declared, `ServiceError`, and `DeadlineError` if no learner begins
    within `queue.stall_deadline_s`.
    """
    together = [prompts for prompts in sets if config.evaluation_of(prompts.set) is None]
    alone = [[prompts] for prompts in sets if prompts not in together]
    declared: list[DeclaredSet] = []
    for some in (*alone, together):
        scanned = [_scan_for(config, queue, prompts, report, within_run=within_run) for prompts in some]
        for one in scanned:
            if within_run and not one.arrived:
                await_learner(config, queue, one.prompts.set)
        found = [_declare(config, queue, one) for one in scanned]
        _send(app, found)
        declared += found
    return [one.submitted for one in declared]


def _scan_for(
    config: Config, queue: SubmitterQueue, prompts: Prompts, report: Report, *, within_run: bool
) -> ScannedSet:
    """Scans a set. Within a run, one that has arrived whole need not be readable any more."""
    counts = queue.submission_counts(prompts.set) if within_run else None
    arrived = counts if counts is not None and counts.whole else None
    try:
        source, chunks = scan(config, prompts, report)
    except PromptError as error:
        if arrived is None:
            raise
        return ScannedSet(prompts, prompts.source, (), arrived, error)
    return ScannedSet(prompts, source.name, chunks, arrived)


def _send(app: "Celery", sets: Sequence[DeclaredSet]) -> None:
    """Sends the chunks of several sets by turns, so that the first of each arrives soon."""
    for row in zip_longest(*(one.waiting for one in sets)):
        for one, chunk in zip(sets, row, strict=True):
            if chunk is not None:
                send(app, one.submitted.set, one.source, [chunk])


def await_learner(config: Config, queue: SubmitterQueue, set: str) -> None:
    """Returns once a set may be declared, for which a learner must have begun that knows its component.

    Raises `DeadlineError` if none does within `queue.stall_deadline_s`.
    """
    give_up = time.monotonic() + config.queue.stall_deadline_s
    component = config.component_of(set)
    while not queue.takes(component.name if component else ""):
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
    limits = _limits(config, prompts.set)
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


def _limits(config: Config, set: str) -> PromptLimits | None:
    limits = limits_for(config, set)
    if limits is not None and (problem := limits.unknown_stop()):
        raise UnfitPromptError(problem)
    return limits


def _prompt_set(config: Config, prompts: Prompts, source: str) -> PromptSet:
    seed = config.run.seed
    if config.evaluation_of(prompts.set):
        return PromptSet(prompts.set, source, order="held_out", seed=seed)
    return PromptSet(prompts.set, source, prompts.epochs, prompts.priority, prompts.order, seed, prompts.length_feature)


def _declare(config: Config, queue: SubmitterQueue, scanned: ScannedSet) -> DeclaredSet:
    """Declares a set, or leaves one that has arrived as it is."""
    prompts, chunks, arrived = scanned.prompts, scanned.chunks, scanned.arrived
    try:
        if scanned.unread is not None:
            raise scanned.unread
        new = _declare_new(config, queue, _prompt_set(config, prompts, scanned.source), chunks)
    except PromptError as error:
        if arrived is None:
            raise
        ignored = tuple(_left(config, prompts, problem) for problem in _keep(config, queue, prompts, error))
        return DeclaredSet(Submitted(prompts.set, arrived.prompts, arrived.chunks, False, ignored))
    total = chunks[-1].first + chunks[-1].count
    status = None if new else queue.submission_status(prompts.set)
    waiting = status.waiting if status else chunks
    return DeclaredSet(Submitted(prompts.set, total, len(chunks), new), scanned.source, waiting)


def _declare_new(config: Config, queue: SubmitterQueue, declared: PromptSet, chunks: Sequence[Chunk]) -> bool:
    with told_in_section(config, declared.name):
        try:
            return queue.declare(declared, chunks)
        except PromptError as error:
            if not (fix := _another_name(config, declared.name)):
                raise
            raise PromptError(Problem("prompts.source", error.problems[0].what, fix)) from None


def together(config: Config, sent: Sequence[Submitted]) -> Submitted:
    """Returns the last of the sets to train on, with all others that were submitted together with it."""
    held_out = [one for one in sent if config.evaluation_of(one.set)]
    *others, last = [one for one in sent if one not in held_out] or [held_out.pop()]
    return replace(last, held_out=tuple(held_out), components=tuple(others))


def changed_source(config: Config, prompts: Prompts, digest: str) -> bool:
    """Returns whether the source of a set holds other prompts than those whose digest Redis has.

    A source that cannot be read holds none: a set that has arrived does not need it.
    """
    try:
        source = opened(config, prompts)
        return digest_of([chunk for chunk, _ in source.scan(prompts.chunk)]) != digest
    except PromptError:
        return False


def left_as_it_is(config: Config, prompts: Prompts, why: str) -> Problem:
    """Returns what `echo-queue run` says of a source that it does not submit, and the ways to have it trained."""
    run = config.run
    what = f"set {prompts.set} has arrived whole and stays as it is; {prompts.source} is not submitted again: {why}"
    if fix := _another_name(config, prompts.set):
        return in_section(config, prompts.set, Problem("prompts.source", what, fix))
    embedded = EMBEDDED == config.redis.url == config.store.url
    anew = f"ECHO_QUEUE_RUN__DIR={run.dir}-2"
    anew = anew if embedded else f"ECHO_QUEUE_RUN__NAME={run.name}-2 {anew}"
    fix = (
        f"to train further prompts, write them alone into a file and submit it as a set of another name: "
        f"`ECHO_QUEUE_PROMPTS__SET={prompts.set}-2 ECHO_QUEUE_PROMPTS__SOURCE=FILE echo-queue run CONFIG`; "
        f"to train {prompts.source} alone, begin another run: `{anew} echo-queue run CONFIG`"
    )
    return Problem("prompts.source", what, fix)


def _another_name(config: Config, set: str) -> str:
    """Says how further prompts get a name of their own; empty for [prompts]."""
    if config.evaluation_of(set):
        return f"to evaluate other prompts, give that evaluation another name, such as {set}-2"
    if component := config.component_of(set):
        alone = f"to train further prompts, write them alone into a file and submit it as a set {component.name}.2"
        return f"{alone} while the run is open: `echo-queue submit CONFIG FILE --set {component.name}.2`"
    return ""


def _left(config: Config, prompts: Prompts, problem: Problem) -> Problem:
    why = problem.what if problem.what.startswith(f"{prompts.set}: ") else f"{problem.where} {problem.what}"
    return left_as_it_is(config, prompts, why.removeprefix(f"{prompts.set}: "))


def _keep(config: Config, queue: SubmitterQueue, prompts: Prompts, error: PromptError) -> tuple[Problem, ...]:
    """Gives a set that has arrived its present priority. Returns what keeps its source from being submitted."""
    try:
        queue.declare(_prompt_set(config, prompts, prompts.source), ())
    except PromptError as further:
        return tuple(dict.fromkeys((*error.problems, *further.problems)))
    return error.problems
