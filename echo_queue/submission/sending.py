"""From a source to the queue: scan, declare, one message per chunk, and wait until all have arrived.

Nothing is declared before every row was checked, and nothing is sent before it is declared: from then on
the ledger in Redis knows what is missing, and any Celery worker finishes what this process began.
"""

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from echo_queue.config import Config, Prompts
from echo_queue.errors import ConfigError, Problem, ServiceError
from echo_queue.queue import Chunk, PromptSet, Queue
from echo_queue.submission.limits import limits_of, refuse_unfit
from echo_queue.submission.sources import open_source, spell

if TYPE_CHECKING:
    from celery import Celery


@dataclass(frozen=True)
class Submitted:
    """A set as the queue knows it. `new` is False where it was submitted before."""

    set: str
    prompts: int
    chunks: int
    new: bool


@dataclass(frozen=True)
class Progress:
    """How far a submission is. `scanned` prompts are read and checked, `arrived` of them are in the backlog."""

    set: str
    scanned: int
    arrived: int = 0
    failed_chunks: int = 0


Report = Callable[[Progress], None]


def submit(
    config: Config, source: str | None = None, *, wait: bool = True, progress: Report | None = None
) -> Submitted:
    """Submits the configured prompt set, or `source` under its name; `wait`: until all of it is in the backlog.

    Raises `PromptError` for prompts that cannot be read or are too long, `ServiceError`, and
    `DeadlineError` when nothing arrives for `submission.deadline_s`.
    """
    from echo_queue.submission.application import build
    from echo_queue.submission.waiting import arrive

    app, queue = build(config), Queue.connect(config, "submitter")
    report = progress or (lambda _: None)
    sent = place(config, queue, app, choose(config, source), report)
    if wait:
        arrive(config, queue, app, sent.set, report)
    return sent


def choose(config: Config, source: str | None = None, set: str | None = None, **changes: Any) -> Prompts:
    """The configuration's [prompts], with what is given in their place. Raises `ConfigError`."""
    given = {"source": source, "set": set} | changes
    if source is not None and source != config.prompts.source:
        given.setdefault("options", {})
    values = config.prompts.model_dump() | {key: value for key, value in given.items() if value is not None}
    try:
        return Prompts.model_validate(values)
    except ValidationError as error:
        problems = [
            Problem(".".join(map(str, ("prompts", *entry["loc"]))), entry["msg"], "mend the argument")
            for entry in error.errors()
        ]
        raise ConfigError(*problems) from None


def place(config: Config, queue: Queue, app: "Celery", prompts: Prompts, report: Report = lambda _: None) -> Submitted:
    """Scans, declares and sends; does not wait. Raises `PromptError` before anything is declared, `ServiceError`."""
    source = open_source(spell(prompts.source, prompts.options))
    limits = limits_of(Path(config.base_model), config.model.max_prompt_tokens)
    chunks: list[Chunk] = []
    gc.freeze()  # Whatever lives by now is no garbage; to look at it again and again takes a third of a scan.
    try:
        for chunk, rows in source.scan(prompts.chunk):
            refuse_unfit(limits, source, chunk, rows)
            chunks.append(chunk)
            report(Progress(prompts.set, scanned=chunk.first + chunk.count))
    finally:
        gc.unfreeze()
    declared = PromptSet(prompts.set, source.name, prompts.epochs, prompts.priority, prompts.order, config.run.seed)
    new = queue.declare(declared, chunks)
    total = chunks[-1].first + chunks[-1].count
    ledger = None if new else queue.ledger(prompts.set)
    send(app, declared.name, declared.source, ledger.waiting if ledger else chunks)
    return Submitted(prompts.set, total, len(chunks), new)


def send(app: "Celery", name: str, source: str, chunks: Iterable[Chunk]) -> None:
    """One message per chunk. Raises `ServiceError` if the broker cannot be reached."""
    from kombu.exceptions import OperationalError
    from redis import RedisError

    from echo_queue.submission.application import EXPAND_CHUNK

    try:
        with app.producer_pool.acquire(block=True) as producer:
            for chunk in chunks:
                rows = {"first": chunk.first, "last": chunk.first + chunk.count - 1}
                message = {"set": name, "number": chunk.number, "source": source, **rows}
                app.send_task(EXPAND_CHUNK, kwargs=message, producer=producer)
    except (OperationalError, RedisError) as error:
        mend = "check redis.url and the rights of its user `celery`, then submit again: that adds nothing twice"
        raise ServiceError(Problem("Celery's broker", str(error), mend)) from None
