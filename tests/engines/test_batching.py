"""Samples join, leave and are continued, and none of them notices the others."""

import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from echo_queue.records import NOTHING, Observed, PartialSample, Span
from tests.engines import reference
from tests.engines.asking import ask, assert_same, finish, prompt, run, step_until
from tests.engines.conftest import BASE, IN_PROCESS, Opener
from tests.engines.models import LONGEST, open_model
from workers.engines import SampleKey, SampleRequest
from workers.engines.transformers.engine import TransformersEngine

UNTIED = 5
"""A seed with which no random number is within 10⁻⁶ of the border between two tokens, where rounding would decide."""

DRAWN_HERE = pytest.mark.parametrize("opener", IN_PROCESS, indirect=True)
"""A server begins its random numbers again where a sample is continued."""


@pytest.fixture(scope="module")
def alone(opener: Opener, folder: Path) -> list[tuple[SampleRequest, PartialSample]]:
    """Requests of different lengths, and the sample of each without others."""
    chance, engine = random.Random(UNTIED), opener(folder)
    requests = [
        SampleRequest(SampleKey(f"t{task}", sample), tokens, 100 * task + sample, chance.randint(1, 150))
        for task in range(12)
        for tokens in [prompt(chance.choice((1, 2, 5, 30, 90)), chance.randrange(6))]
        for sample in range(chance.randint(1, 4))
    ]
    return [(request, run(engine, [request])[request.key]) for request in requests]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 5, 7])
def test_samples_that_join_and_leave_at_random_are_what_they_are_alone(
    opener: Opener, folder: Path, alone: list[tuple[SampleRequest, PartialSample]], seed: int
) -> None:
    chance, engine = random.Random(seed), opener(folder)
    waiting, together = deque(request for request, _ in alone), dict[SampleKey, PartialSample]()
    while waiting or engine.running:
        if waiting and (chance.random() < 0.2 or not engine.running):
            engine.add([waiting.popleft() for _ in range(min(len(waiting), chance.randint(1, 5)))])
        together |= engine.step()
    assert len(together) == len(alone)
    for request, partial_sample in alone:
        assert_same(together[request.key], partial_sample)


@DRAWN_HERE
def test_one_that_left_and_is_continued_elsewhere_is_what_it_would_have_been(opener: Opener, endless: Path) -> None:
    engine, tokens = opener(endless), prompt(7, 2)
    whole = run(engine, ask("a", tokens, 50, samples=3))
    requests = ask("a", tokens, 50, samples=3)
    engine.add([*requests, *ask("b", prompt(19, 3), 80)])
    step_until(engine, 20, SampleKey("a", 0))
    partials = engine.partials(["a"])
    assert set(partials) == {SampleKey("a", sample) for sample in range(3)}
    engine.abort(["a", "unheard of"])
    assert engine.running == 1 and set(engine.partials()) == {SampleKey("b", 0)}
    engine.add([request._replace(partial_sample=partials[request.key]) for request in requests])
    ended = finish(engine)
    for request in requests:
        assert len(partials[request.key].tokens) >= 20 and partials[request.key].finish is None
        assert_same(ended[request.key], whole[request.key])


@DRAWN_HERE
def test_one_that_was_begun_by_another_engine_is_what_it_would_have_been(opener: Opener, endless: Path) -> None:
    (request,) = ask("a", prompt(11, 3), 60, seed=5)
    first = TransformersEngine(str(endless), BASE, "float32", LONGEST)
    (whole,) = run(first, [request]).values()
    first.add([request])
    begun = step_until(first, 25, request.key)
    (ended,) = run(opener(endless), [request._replace(partial_sample=begun)]).values()
    assert_same(ended, whole)


def test_the_partial_of_a_sample_that_was_not_begun_is_the_one_it_came_with(opener: Opener, endless: Path) -> None:
    engine, tokens = opener(endless), prompt(7, 2)
    begun = next(iter(run(engine, ask("a", tokens, 5)).values()))
    engine.add([*ask("b", tokens, 9), *ask("c", tokens, 9, partial_sample=begun)])
    assert engine.running == 2
    partials = engine.partials()
    assert len(partials[SampleKey("b", 0)].tokens) == 0 and partials[SampleKey("b", 0)].spans == ()
    np.testing.assert_array_equal(partials[SampleKey("c", 0)].tokens, begun.tokens)
    engine.abort(["b", "c"])
    assert engine.running == 0 and engine.step() == {}


def test_what_the_environment_wrote_is_read_and_kept_as_it_is(opener: Opener, endless: Path) -> None:
    engine, tokens = opener(endless), prompt(6, 1)
    (turn,) = run(engine, ask("a", tokens, 8)).values()
    reply = prompt(5, 9)
    partial_sample = PartialSample(
        np.concatenate([turn.tokens, reply]),
        np.concatenate([turn.logprobs, np.zeros(5, np.float32)]),
        turn.spans,
        (Observed(8, 13),),
    )
    (ended,) = run(engine, ask("a", tokens, 30, partial_sample=partial_sample)).values()
    np.testing.assert_array_equal(ended.tokens[:13], partial_sample.tokens)
    np.testing.assert_array_equal(ended.logprobs[:13], partial_sample.logprobs)
    assert (ended.observed, ended.spans, len(ended.tokens)) == ((Observed(8, 13),), (Span(0, 0),), 30)
    reference.assert_drawn_by({0: open_model(endless)}, tokens, ended, begun=13)


def test_a_partial_of_older_weights_keeps_its_spans(opener: Opener, endless: Path) -> None:
    engine, tokens = opener(endless), prompt(6, 1)
    (made,) = run(engine, ask("a", tokens, 8)).values()
    partial_sample = PartialSample(made.tokens, made.logprobs, (Span(0, -3), Span(5, -1)))
    (ended,) = run(engine, ask("a", tokens, 9, partial_sample=partial_sample)).values()
    assert ended.spans == (Span(0, -3), Span(5, -1), Span(8, 0))


@pytest.mark.parametrize("what", ["key", "prompt", "limit"])
def test_what_cannot_join_is_refused_and_takes_nobody_along(opener: Opener, endless: Path, what: str) -> None:
    engine, tokens = opener(endless), prompt(6, 1)
    (made,) = run(engine, ask("a", tokens, 8)).values()
    good = SampleRequest(SampleKey("good", 0), tokens, 1, 8)
    engine.add([SampleRequest(SampleKey("there", 0), tokens, 1, 8)])
    bad = {
        "key": SampleRequest(SampleKey("there", 0), tokens, 1, 8),
        "prompt": SampleRequest(SampleKey("bad", 0), tokens[:0], 1, 8),
        "limit": SampleRequest(SampleKey("bad", 0), tokens, 1, 8, made),
    }[what]
    with pytest.raises(ValueError, match=bad.key.task):
        engine.add([good, bad])
    assert set(finish(engine)) == {SampleKey("there", 0)}
    assert NOTHING.finish is None and set(run(engine, [good])) == {good.key}
