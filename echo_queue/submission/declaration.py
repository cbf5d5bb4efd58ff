"""Brings a prompt source to the queue: scans it, declares the set, and sends one message per chunk.

A set is declared only after every row was checked, and sent only after it was declared. From then on Redis knows which
chunks are missing, and any Celery worker can finish the submission that this process began.
"""

import gc
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from celery import Celery
from pydantic import ValidationError

from echo_queue.config import Config, Prompts
from echo_queue.errors import ConfigError, Problem
from echo_queue.queue import Chunk, PromptSet, SubmitterQueue
from echo_queue.records import PromptRow
from echo_queue.submission.celery.messages import send
from echo_queue.submission.length_features import refuse_featureless
from echo_queue.submission.length_limits import limits_of, refuse_unfit
from echo_queue.submission.progress import Progress, Report, Submitted
from echo_queue.submission.sources.registry import open_source
from echo_queue.submission.sources.source import spell

SAMPLE_ROWS = 1_000


def choose(config: Config, source: str | None = None, set: str | None = None, **changes: Any) -> Prompts:
    """Returns the configuration's [prompts] with the given values in their place. Raises `ConfigError`."""
    given = {"source": source, "set": set} | changes
    if source is not None and source != config.prompts.source:
        given.setdefault("options", {})
    values = config.prompts.model_dump() | {key: value for key, value in given.items() if value is not None}
    try:
        return Prompts.model_validate(values)
    except ValidationError as error:
        problems = [
            Problem(".".join(map(str, ("prompts", *entry["loc"]))), entry["msg"], "fix the argument")
            for entry in error.errors()
        ]
        raise ConfigError(*problems) from None


def check_first_rows(config: Config) -> Sequence[PromptRow]:
    """Checks the first rows of the configured set, before a run starts any process, and returns them.

    Raises `PromptError`.
    """
    first: Sequence[PromptRow] = ()
    source = open_source(spell(config.prompts.source, config.prompts.options))
    limits = limits_of(Path(config.base_model), config.model.max_prompt_tokens)
    for chunk, rows in islice(source.scan(min(config.prompts.chunk, SAMPLE_ROWS)), 1):
        refuse_unfit(limits, source, chunk, rows)
        refuse_featureless(config.prompts.length_feature, source, chunk, rows)
        first = rows
    return first


def declare_and_send(
    config: Config, queue: SubmitterQueue, app: Celery, prompts: Prompts, report: Report = lambda _: None
) -> Submitted:
    """Scans, declares and sends a set, without waiting for its chunks.

    Raises `PromptError`, always before the set is declared, and `ServiceError`.
    """
    source = open_source(spell(prompts.source, prompts.options))
    limits = limits_of(Path(config.base_model), config.model.max_prompt_tokens)
    chunks: list[Chunk] = []
    gc.freeze()  # Objects alive by now are no garbage; tracing them again and again takes a third of a scan.
    try:
        for chunk, rows in source.scan(prompts.chunk):
            refuse_unfit(limits, source, chunk, rows)
            refuse_featureless(prompts.length_feature, source, chunk, rows)
            chunks.append(chunk)
            report(Progress(prompts.set, scanned=chunk.first + chunk.count))
    finally:
        gc.unfreeze()
    declared = PromptSet(
        prompts.set,
        source.name,
        prompts.epochs,
        prompts.priority,
        prompts.order,
        config.run.seed,
        prompts.length_feature,
    )
    new = queue.declare(declared, chunks)
    total = chunks[-1].first + chunks[-1].count
    status = None if new else queue.submission_status(prompts.set)
    send(app, declared.name, declared.source, status.waiting if status else chunks)
    return Submitted(prompts.set, total, len(chunks), new)
