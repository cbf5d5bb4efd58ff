"""Records how long groups are, for `benchmarks.long_tail`: two epochs of prompts by the model of a run.

    echo-queue init-model CONFIG, then: python -m benchmarks.record_lengths CONFIG [--prompts 256] [--samples 8]

The recorded ones are of the quick start with 2 to 24 numbers to sort, at most 128 new tokens and a warm-up of 150 steps
of 24 examples: a model that knows the form of an answer and does not always end it where it should.
"""

import argparse
import sys
from pathlib import Path

import orjson

from benchmarks.long_tail import RECORDED
from echo_queue.config import Config, load
from echo_queue.records import NOTHING, Tokens, Version
from echo_queue.submission.opening import open_source
from echo_queue.submission.sources import spell
from workers import engines
from workers.assignment import seed_of
from workers.engines import Engine, Key, Request
from workers.prompts import Prompts

ROOM = 128
"""Samples in the engine at once."""


def longest(engine: Engine, prompts: list[Tokens], samples: int, limit: int, epoch: int) -> list[int]:
    """Tokens of the longest sample of each prompt's group."""
    waiting = [
        Request(Key(str(place), sample), prompt, seed_of(epoch, str(place), sample), limit, NOTHING)
        for place, prompt in enumerate(prompts)
        for sample in range(samples)
    ]
    lengths = [0] * len(prompts)
    while waiting or engine.running:
        room = max(0, ROOM - engine.running)
        engine.add(waiting[:room])
        del waiting[:room]
        for key, draft in engine.step().items():
            lengths[int(key.task)] = max(lengths[int(key.task)], len(draft.tokens))
    return lengths


def encoded(config: Config, count: int) -> list[Tokens]:
    """The run's first prompts, as its model reads them."""
    source = open_source(spell(config.prompts.source, config.prompts.options))
    chunk, rows = next(iter(source.scan(count)))
    prompts = Prompts.open(config.base_model, config.model.max_prompt_tokens)
    return [prompts.encode(row) for row in rows or source.read(chunk)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--samples", type=int, default=8)
    arguments = parser.parse_args()
    config = load(arguments.config)
    stop_tokens = Prompts.open(config.base_model, config.model.max_prompt_tokens).stop_tokens
    engine = engines.create(config, config.base_model, Version(0, 0), stop_tokens)
    prompts, limit = encoded(config, arguments.prompts), config.model.max_new_tokens
    before, now = (longest(engine, prompts, arguments.samples, limit, epoch) for epoch in range(2))
    RECORDED.write_bytes(orjson.dumps({"before": before, "now": now}) + b"\n")
    print(f"{RECORDED}: {len(now)} prompts, {min(now)} to {max(now)} tokens, {sum(now) / len(now):.1f} in the mean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
