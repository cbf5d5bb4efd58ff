import math
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest

from echo_queue.evaluation.statistics import Estimate, difference, mean_of, pass_at, pass_at_k, t_quantile

RUNS = 1_000
Draw = Callable[[np.random.Generator], Sequence[Sequence[float]]]


def binary(prompts: int, chance: float) -> Draw:
    """One answer to each prompt, which succeeds with a chance that is the same for all."""
    return lambda draw: (draw.random((prompts, 1)) < chance).astype(float).tolist()


def continuous(prompts: int) -> Draw:
    """One answer to each prompt, with a normal reward around 0.4."""
    return lambda draw: draw.normal(0.4, 0.3, (prompts, 1)).tolist()


def clusters(prompts: int, answers: int) -> Draw:
    """Several answers to each prompt, which is easy or hard: its own chance is uniform, and 0.5 in the mean."""
    return lambda draw: (draw.random((prompts, answers)) < draw.random((prompts, 1))).astype(float).tolist()


SHAPES = {
    "binary, few prompts": (binary(20, 0.6), 0.6),
    "binary, few prompts, nearly all solved": (binary(20, 0.95), 0.95),
    "binary, many prompts": (binary(300, 0.85), 0.85),
    "continuous, few prompts": (continuous(5), 0.4),
    "continuous": (continuous(100), 0.4),
    "many answers to few prompts": (clusters(12, 16), 0.5),
    "clusters": (clusters(100, 8), 0.5),
}


def covers(estimate: Estimate | None, truth: float) -> bool:
    assert estimate and estimate.low is not None and estimate.high is not None
    return estimate.low <= truth <= estimate.high


@pytest.mark.parametrize("shape", SHAPES)
def test_the_interval_covers_the_truth_in_93_of_100_runs_and_is_no_wider_than_it_must(shape: str) -> None:
    draw, truth = SHAPES[shape]
    covered = sum(covers(mean_of(draw(np.random.default_rng(seed))), truth) for seed in range(RUNS))
    assert 0.93 <= covered / RUNS <= 0.98


def test_the_interval_of_a_difference_covers_the_truth_and_leaves_out_what_is_hard_for_both() -> None:
    covered, widths = 0, []
    for seed in range(RUNS):
        draw = np.random.default_rng(seed)
        ease = draw.normal(0.5, 0.5, 40)
        first, second = ([[float(one)] for one in ease + shift + draw.normal(0, 0.1, 40)] for shift in (0.0, 0.05))
        found = difference(dict(enumerate(first)), dict(enumerate(second)))
        covered += covers(found, 0.05)
        widths.append([width(found), width(mean_of(second))])
    assert 0.93 <= covered / RUNS <= 0.98
    paired, alone = np.mean(widths, axis=0)
    assert paired < alone / 2


def width(estimate: Estimate | None) -> float:
    assert estimate and estimate.low is not None and estimate.high is not None
    return estimate.high - estimate.low


def test_a_share_without_a_failure_is_no_certainty() -> None:
    found = mean_of([[1.0]] * 50)
    assert found and found.low is not None and found.high == found.mean == 1.0
    assert 0.90 < found.low < 0.95


def test_only_prompts_that_both_models_answered_are_compared() -> None:
    first, second = {1: [0.0], 2: [0.5, 0.5], 3: [1.0]}, {2: [1.0], 3: [0.5], 4: [1.0]}
    found = difference(first, second)
    assert found and (found.mean, found.prompts) == (0.0, 2)
    assert difference({1: [0.0]}, {2: [1.0]}) is None


def test_a_prompt_counts_once_however_many_answers_it_has() -> None:
    found = mean_of([[1.0], [0.0, 0.0, 0.0]])
    assert found and (found.mean, found.prompts) == (0.5, 2)


def test_one_prompt_says_nothing_of_how_much_prompts_differ() -> None:
    assert mean_of([[0.0, 1.0]]) == Estimate(0.5, None, None, 1)
    assert mean_of([]) is None


def test_pass_at_k_is_the_share_of_all_draws_with_a_success() -> None:
    for answers in range(1, 7):
        for successes in range(answers + 1):
            marks = [1] * successes + [0] * (answers - successes)
            for k in range(1, answers + 1):
                drawn = [any(some) for some in combinations(marks, k)]
                assert pass_at_k(answers, successes, k) == pytest.approx(fmean(drawn))


def test_pass_at_k_goes_up_to_the_fewest_answers_in_powers_of_two() -> None:
    assert pass_at([[1.0, 0.0, 0.0, 0.0, 0.0], [0.9, 1.0, 0.0, 0.0, 0.0]], 0.9) == pytest.approx(
        {1: 0.3, 2: 0.55, 4: 0.9}
    )
    assert pass_at([[1.0], [0.0]], 1.0) == {1: 0.5}
    assert pass_at([], 1.0) == {}


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (29, 2.0452), (1_000, 1.9623)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


def test_with_many_prompts_the_quantile_is_that_of_the_normal_distribution() -> None:
    assert t_quantile(100_000) == pytest.approx(1.95996, abs=1e-4)
    assert math.isfinite(t_quantile(1_000_000))
