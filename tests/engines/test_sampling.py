"""Sampling of every engine: tokens are drawn from the model's own distribution, with its frequencies."""

from pathlib import Path

import numpy as np
import pytest
import torch

from echo_queue.records import Tokens
from tests.engines import reference
from tests.engines.asking import ask, assert_same, prompt, run
from tests.engines.conftest import MAX_PROMPT, Opener, Saved
from tests.engines.models import LONGEST, STOP, VOCABULARY, open_model
from workers.engines import SampleKey, Sampling
from workers.engines.draw import to_lists

HOT = 2.0
"""The temperature at which most of these tests draw."""
DRAWS = 2_000


def test_the_longest_prompt_there_may_be_is_continued_to_the_end_of_the_model(opener: Opener, endless: Path) -> None:
    tokens = prompt(MAX_PROMPT, 3)
    (partial_sample,) = run(opener(endless), ask("a", tokens, LONGEST - MAX_PROMPT)).values()
    assert partial_sample.finish == "length" and len(partial_sample.tokens) == LONGEST - MAX_PROMPT
    reference.assert_drawn_by({0: open_model(endless)}, tokens, partial_sample)


def test_another_seed_gives_another_sample_and_the_same_the_same(opener: Opener, endless: Path) -> None:
    engine, tokens = opener(endless), prompt(4, 1)
    partials = run(engine, [*ask("a", tokens, 20, samples=2), *ask("b", tokens, 20)])
    again = run(engine, ask("a", tokens, 20, samples=2))
    assert partials[SampleKey("a", 0)].tokens.tolist() == partials[SampleKey("b", 0)].tokens.tolist()
    assert partials[SampleKey("a", 0)].tokens.tolist() != partials[SampleKey("a", 1)].tokens.tolist()
    for key, partial_sample in again.items():
        np.testing.assert_array_equal(partial_sample.tokens, partials[key].tokens)


def test_what_was_sampled_is_counted(opener: Opener, endless: Path) -> None:
    engine = opener(endless)
    before = engine.sampled
    partials = run(engine, ask("a", prompt(6, 1), 12, samples=5))
    assert engine.sampled - before == sum(len(partial_sample.tokens) for partial_sample in partials.values())


@pytest.mark.parametrize("temperature", [0.01, 0.0])
def test_a_cold_sample_has_the_likeliest_token_every_time(opener: Opener, endless: Path, temperature: float) -> None:
    model, engine, cold = open_model(endless), opener(endless, temperature=0.01), Sampling(temperature, 0.9)
    prompts = {f"p{length}": prompt(length, length) for length in (1, 2, 17, 40)}
    partials = run(engine, [one for task, tokens in prompts.items() for one in ask(task, tokens, 12, sampling=cold)])
    for task, tokens in prompts.items():
        partial_sample = partials[SampleKey(task, 0)]
        assert partial_sample.tokens.tolist() == reference.greedy(model, tokens, 12)
        if temperature == 0.0:
            reference.assert_drawn_by({0: model}, tokens, partial_sample, temperature=1.0)


def test_samples_of_different_distributions_are_in_one_batch_what_they_are_alone(opener: Opener, folder: Path) -> None:
    samplings = [Sampling(), Sampling(HOT), Sampling(0.0), Sampling(1.0, 0.6), Sampling(HOT, 0.6)]
    engine, requests = opener(folder), [
        request
        for number in range(15)
        for request in ask(f"t{number}", prompt(5, number), 10 + 2 * number, samples=2, sampling=samplings[number % 5])
    ]  # fmt: skip
    alone = {request.key: run(engine, [request])[request.key] for request in requests}
    together = run(engine, requests)
    assert together.keys() == alone.keys()
    for key, partial_sample in together.items():
        assert_same(partial_sample, alone[key])


@pytest.mark.parametrize("tied", [False, True])
def test_logprobs_equal_a_plain_forward_pass_for_prompts_of_different_lengths(
    opener: Opener, saved: Saved, tied: bool
) -> None:
    folder = saved(1, tied=tied)
    models, engine, hot = {0: open_model(folder)}, opener(folder), Sampling(HOT)
    prompts = {f"p{length}": prompt(length, length) for length in (1, 2, 17, 9)}
    partials = run(
        engine, [one for task, tokens in prompts.items() for one in ask(task, tokens, 24, samples=6, sampling=hot)]
    )
    assert len(partials) == 24
    for key, partial_sample in partials.items():
        reference.assert_drawn_by(models, prompts[key.task], partial_sample, temperature=HOT)


FIRST = prompt(5, 1)


@pytest.fixture(scope="module")
def drawn(opener: Opener, folder: Path) -> list[list[int]]:
    """Many samples of one prompt, of two tokens each, or of a stop token alone."""
    partials = run(opener(folder), ask("a", FIRST, 2, samples=DRAWS, sampling=Sampling(HOT)))
    return [partial_sample.tokens.tolist() for partial_sample in partials.values()]


def test_tokens_are_drawn_as_often_as_the_model_says(drawn: list[list[int]], folder: Path) -> None:
    assert_as_often([first for first, *_ in drawn], folder, FIRST)


def test_the_numbers_of_a_sample_are_independent_of_one_another(drawn: list[list[int]], folder: Path) -> None:
    """The second token, given the first: drawn with another number, it is as frequent as the model says."""
    pairs = [tokens for tokens in drawn if len(tokens) == 2]
    first = np.bincount([first for first, _ in pairs]).argmax()
    seconds = [second for before, second in pairs if before == first]
    assert len(seconds) > 100
    assert_as_often(seconds, folder, np.append(FIRST, np.int32(first)))


def test_a_sample_ends_with_its_first_stop_token_or_at_its_limit(opener: Opener, folder: Path) -> None:
    partials = run(opener(folder), ask("a", prompt(3, 4), 30, samples=64, sampling=Sampling(HOT))).values()
    stopped = [partial_sample for partial_sample in partials if partial_sample.finish == "stop"]
    assert len(stopped) > 4
    assert all(
        partial_sample.tokens[-1] == STOP and STOP not in partial_sample.tokens[:-1] for partial_sample in stopped
    )
    whole = [partial_sample for partial_sample in partials if partial_sample.finish == "length"]
    assert whole and all(
        len(partial_sample.tokens) == 30 and STOP not in partial_sample.tokens for partial_sample in whole
    )
    assert len(stopped) + len(whole) == 64


def test_top_p_draws_from_the_nucleus_and_reports_its_renormalised_probability(opener: Opener, folder: Path) -> None:
    tokens = prompt(5, 1)
    partials = run(opener(folder, top_p=0.6), ask("a", tokens, 1, samples=400, sampling=Sampling(1.0, 0.6)))
    full = reference.logits(open_model(folder), tokens)[-1].softmax(-1).numpy()
    order = np.argsort(-full)
    nucleus = order[: int(np.searchsorted(np.cumsum(full[order]), 0.6)) + 1]
    assert {int(partial_sample.tokens[0]) for partial_sample in partials.values()} == set(nucleus.tolist())
    for partial_sample in partials.values():
        assert (
            abs(np.exp(partial_sample.logprobs[0]) - full[partial_sample.tokens[0]] / full[nucleus].sum())
            < reference.CLOSE
        )


def assert_as_often(tokens: list[int], folder: Path, before: Tokens) -> None:
    """Asserts that these tokens, drawn after `before`, are as frequent as the model says.

    An engine draws the same tokens each time, so a right one that passed once does not fail later; of all right ways to
    draw, one in about 10,000 would fail.
    """
    probabilities = reference.logits(open_model(folder), before)[-1].div(HOT).softmax(-1).numpy()
    assert chi_square(np.bincount(tokens, minlength=VOCABULARY), probabilities) < 5


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic, in standard deviations above its mean; rare tokens count as one."""
    expected = counts.sum() * probabilities.astype(float)
    common = expected >= 5
    seen = np.append(counts[common], counts[~common].sum())
    awaited = np.append(expected[common], max(expected[~common].sum(), 1e-9))
    degrees = len(seen) - 1
    return float((((seen - awaited) ** 2 / awaited).sum() - degrees) / np.sqrt(2 * degrees))


def test_tokens_and_their_log_probabilities_are_read_together_and_exactly() -> None:
    tokens = torch.tensor([0, 1, 151_935, 2**31 - 1])
    logprobs = torch.tensor([-0.1, -1e-30, -17.3, 0.0])
    assert to_lists(tokens, logprobs) == (tokens.tolist(), logprobs.tolist())
    assert all(type(token) is int for token in to_lists(tokens, logprobs)[0])
