"""Records how long groups are, for `benchmarks.long_tail`: two epochs of prompts by the model of a run.

It also records each prompt's bucket, which the queue gets at submission, and how long a step of the engine takes with
one group, with two, and so on.

    echo-queue init-model CONFIG, then: python -m benchmarks.record_lengths CONFIG [--prompts 256] [--samples 8]

The recorded lengths are those of the quick start with 2 to 24 numbers to sort, at most 128 new tokens and a warm-up of
150 steps of 24 examples: a model that knows the form of an answer and does not always end it where it should.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
import torch

from benchmarks.long_tail import GROUPS, RECORDED
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.records import PromptRow, Tokens, Version
from echo_queue.submission.length_features import buckets
from echo_queue.submission.sources.registry import open_source
from echo_queue.submission.sources.source import spell
from workers import engines
from workers.assignment import seed_of
from workers.engines import Engine, SampleKey, SampleRequest, Sampling
from workers.prompt_encoder import PromptEncoder

ROOM = 128
"""Samples in the engine at once."""
STEPPED = 24
"""Number of prompts with which steps are timed, and of tokens of each."""
STEPS = 16


def longest(
    engine: Engine, prompts: list[Tokens], samples: int, limit: int, epoch: int, *, sampling: Sampling
) -> list[int]:
    """Returns the tokens of the longest sample of each prompt's group."""
    waiting = [
        SampleRequest(
            SampleKey(str(place), sample), prompt, seed_of(epoch, str(place), sample), limit, sampling=sampling
        )
        for place, prompt in enumerate(prompts)
        for sample in range(samples)
    ]
    lengths = [0] * len(prompts)
    while waiting or engine.running:
        room = max(0, ROOM - engine.running)
        engine.add(waiting[:room])
        del waiting[:room]
        for key, partial_sample in engine.step().items():
            lengths[int(key.task)] = max(lengths[int(key.task)], len(partial_sample.tokens))
    return lengths


def step_s(engine: Engine, prompts: list[Tokens], samples: int, groups: int) -> float:
    """Returns the seconds of a step, one token of each sample, with so many groups.

    It is the first decile of the steps, since other load on the machine slows some of them down.
    """
    taken: list[float] = []
    for first in range(0, STEPPED, groups):
        waiting = [
            SampleRequest(SampleKey(str(place), sample), prompts[place], seed_of(0, str(place), sample), STEPS)
            for place in range(first, first + groups)
            for sample in range(samples)
        ]
        engine.add(waiting)
        engine.step()  # reads the prompts
        while engine.running:
            whole, began = engine.running == len(waiting), time.monotonic()
            engine.step()
            taken += [time.monotonic() - began] if whole else []
    return statistics.quantiles(taken, n=10)[0]


def first_rows(config: Config, count: int) -> Sequence[PromptRow]:
    """Returns the run's first prompts."""
    prompts = config.prompts
    source = open_source(spell(prompts.source, prompts.options, prompts.map), prompts.source)
    chunk, rows = next(iter(source.scan(count)))
    return rows or source.read(chunk)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--samples", type=int, default=8)
    arguments = parser.parse_args()
    config = load(arguments.config)
    torch.set_num_threads(config.worker_threads)
    reader = PromptEncoder.open(config.base_model, config.model.max_prompt_tokens)
    engine = engines.create(config, config.base_model, Version(0, 0), reader.stop_tokens)
    rows, limit = first_rows(config, arguments.prompts), config.model.max_new_tokens
    sampling = Sampling(config.rollout.temperature, config.rollout.top_p)
    prompts = [reader.encode(row) for row in rows]
    steps_s = [step_s(engine, prompts, arguments.samples, groups) for groups in range(1, GROUPS + 1)]
    before, now = (longest(engine, prompts, arguments.samples, limit, epoch, sampling=sampling) for epoch in range(2))
    words = {"buckets": list(buckets(rows, config.prompts.length_feature)), "before": before, "now": now}
    RECORDED.write_bytes(orjson.dumps(words | {"steps_s": steps_s}) + b"\n")
    print(f"{RECORDED}: {len(now)} prompts, {min(now)} to {max(now)} tokens, {sum(now) / len(now):.1f} in the mean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
