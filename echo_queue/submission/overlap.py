"""Finds prompts that are held out and trained as well, whose scores say nothing about prompts new to the model.

It compares the first prompts of the sets, as they are written, and reads no more of them than takes a moment.
"""

import time
from collections.abc import Iterator

import orjson

from echo_queue.config import Config, Prompts
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.queue.counts import agreeing
from echo_queue.submission.configured_sets import held_out_sets, in_section, trained_sets
from echo_queue.submission.declaration import opened
from echo_queue.submission.sources.source import GENERATED, OWN

MOST = 10_000
"""So many prompts of a set are compared."""
BLOCK = 50
SIZE = 500
"""The number of items of a reasoning-gym set that does not say it."""
LONGEST_S = 1.0
"""No further block of a set is read after this time: some generators take long for each prompt."""


def trained_too(config: Config) -> Iterator[Problem]:
    """Yields a warning for each held-out set that shares prompts with a set to train on, for each such set.

    Sets that cannot be read share none.
    """
    if not config.evaluation:
        return
    trained = [(prompts, frozenset(first_prompts(config, prompts))) for prompts in trained_sets(config)]
    for held_out in held_out_sets(config):
        compared = list(first_prompts(config, held_out))
        for prompts, known in trained:
            if shared := sum(prompt in known for prompt in compared):
                among = f"the first {len(compared):,} of {held_out.set}"
                what = f"{shared:,} of {among} {agreeing(shared, 'is', 'are')} also in {prompts.set}, and trained"
                yield in_section(config, held_out.set, Problem("prompts.source", what, _apart(prompts, held_out)))


def _apart(trained: Prompts, held_out: Prompts) -> str:
    """Says how to hold other prompts out."""
    ours, theirs = trained.options, held_out.options
    if trained.source == held_out.source and trained.source.startswith(GENERATED):
        first, others = range(ours["seed"], ours["seed"] + ours.get("size", SIZE)), theirs["seed"]
        if others < first.stop and others + theirs.get("size", SIZE) > first.start:
            return f"item i is drawn from seed + i: set options.seed to {first.stop} or more"
    return "hold out prompts that are not trained: answers to others do not show what the model has learned"


def first_prompts(config: Config, prompts: Prompts) -> Iterator[bytes]:
    """Yields the first prompts of a set as JSON, as far as they can be read; those that the user's own code makes,
    which may look alike, with their columns."""
    whole = OWN.fullmatch(prompts.source)
    give_up = time.monotonic() + LONGEST_S
    try:
        source = opened(config, prompts)
        for chunk, rows in source.scan(BLOCK):
            for row in rows or source.read(chunk):
                yield orjson.dumps([row.prompt, row.columns] if whole else row.prompt)
            if chunk.first + chunk.count >= MOST or time.monotonic() > give_up:
                return
    except EchoQueueError:
        return  # whoever checks or submits the set is told
