"""Requests to engines, and the samples that they return."""

from collections.abc import Iterable, Sequence

import numpy as np

from echo_queue.records import NOTHING, PartialSample, Tokens
from tests.engines.haste import haste
from tests.engines.models import VOCABULARY
from workers.engines import Engine, SampleKey, SampleRequest, Sampling

MOST_STEPS = 10_000
AS_IT_IS = Sampling()


def prompt(length: int, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(4, VOCABULARY, length, dtype=np.int32)


def ask(
    task: str,
    prompt: Tokens,
    limit: int,
    *,
    samples: int = 1,
    seed: int = 0,
    partial_sample: PartialSample = NOTHING,
    sampling: Sampling = AS_IT_IS,
) -> list[SampleRequest]:
    return [
        SampleRequest(SampleKey(task, sample), prompt, 1000 * seed + sample, limit, partial_sample, sampling)
        for sample in range(samples)
    ]


def finish(engine: Engine) -> dict[SampleKey, PartialSample]:
    """Steps until no sample is running; returns the samples that ended."""
    ended: dict[SampleKey, PartialSample] = {}
    with haste():
        for _ in range(MOST_STEPS):
            if not engine.running:
                return ended
            ended |= engine.step()
    raise AssertionError(f"{engine.running} samples are under way after {MOST_STEPS} steps")


def run(engine: Engine, requests: Iterable[SampleRequest]) -> dict[SampleKey, PartialSample]:
    engine.add(list(requests))
    return finish(engine)


def step_until(engine: Engine, tokens: int, key: SampleKey) -> PartialSample:
    """Steps until this sample has at least so many tokens."""
    for _ in range(MOST_STEPS):
        partial_sample = engine.partials([key.task])[key]
        if len(partial_sample.tokens) >= tokens:
            return partial_sample
        assert key not in engine.step(), f"{key} ended before its token {tokens}"
    raise AssertionError(f"{key} does not move on")


def assert_same(left: PartialSample, right: PartialSample) -> None:
    """Asserts that two samples are the same, up to rounding of their log-probabilities."""
    np.testing.assert_array_equal(left.tokens, right.tokens)
    np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-4, rtol=0)
    assert (left.spans, left.observed, left.finish) == (right.spans, right.observed, right.finish)


def versions(partial_sample: PartialSample) -> Sequence[int]:
    """Returns the version of each token."""
    starts = [*(span.start for span in partial_sample.spans), len(partial_sample.tokens)]
    return [
        span.version for span, end in zip(partial_sample.spans, starts[1:], strict=True) for _ in range(span.start, end)
    ]
