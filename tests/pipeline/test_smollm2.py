"""The recipe of the pretrained chat model: its prompts, its rewards, and the verdict of its benchmark."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.against_trl import Curve, Point
from benchmarks.real_model import BASE, OURS, TRL, Scored, targets, trained
from configs.smollm2.sums import Sums, alone, right
from echo_queue.config.loading import load


def pairs(**options: object) -> list[str]:
    return [row["prompt"][0]["content"] for row in Sums(**options)]  # type: ignore[arg-type]


def test_no_pair_of_numbers_is_trained_and_held_out() -> None:
    trained_pairs, held_out = pairs(size=3_000, seed=1), pairs(size=1_000, seed=2, held_out=True)
    assert not set(trained_pairs) & set(held_out)
    assert len(set(trained_pairs)) == 1_920
    assert len(set(held_out)) == 384


def test_the_order_follows_from_the_seed_alone() -> None:
    assert pairs(size=50, seed=1) == pairs(size=50, seed=1) != pairs(size=50, seed=3)


@pytest.mark.parametrize(
    ("said", "is_right", "is_alone"),
    [("12", 1, 1), (" 12\n", 1, 1), ("5 + 7 is 12", 1, 0), ("12 is 5 + 7", 0, 0), ("13", 0, 1), ("", 0, 0)],
)
def test_an_answer_is_right_by_its_last_number_and_alone_without_words(
    said: str, is_right: float, is_alone: float
) -> None:
    for completion in (said, [{"role": "assistant", "content": said}]):
        assert right(completions=[completion], answer=["12"]) == [is_right]
        assert alone(completions=[completion], answer=["12"]) == [is_alone]


def test_the_recipe_is_a_configuration_whose_prompts_suffice_for_its_updates() -> None:
    config = load(Path("configs/smollm2.toml"), {})
    (held_out,) = config.evaluation
    assert config.prompts.options["size"] % config.learner.batch_groups == 0
    assert held_out.options["held_out"]
    assert config.environment.reward_functions.keys() == {"right", "alone"}


def course(name: str, seconds: float, rewards: tuple[float, ...]) -> Curve:
    points = [Point(100.0 + seconds * number, reward, 64, 600) for number, reward in enumerate(rewards, 1)]
    return Curve(name, 90.0, 100.0, points)


def verdict(ours_s: float, gain: float, scores: Mapping[str, float]) -> list[bool]:
    rewards = tuple(number / 20 for number in range(20))
    found = {OURS: trained(course(OURS, ours_s, rewards)), TRL: trained(course(TRL, 60.0, rewards))}
    held_out = {name: Scored(name, mean, mean - 0.1, mean + 0.1, gain, gain, gain) for name, mean in scores.items()}
    return list(targets(found, held_out).values())


def test_the_figures_of_a_training_are_those_of_its_curve() -> None:
    figures = trained(course(OURS, 30.0, (*[0.0] * 10, *[1.0] * 10)))
    assert (figures.updates, figures.samples, figures.reward_first, figures.reward_last) == (20, 1_280, 0.0, 1.0)
    assert (figures.first_update_s, figures.per_update_s, figures.training_s) == (40.0, 30.0, 600.0)


def test_each_promise_of_the_benchmark_can_be_broken() -> None:
    level = {BASE: 0.2, OURS: 0.8, TRL: 0.8}
    assert verdict(30.0, 0.5, level) == [True] * 4
    assert verdict(130.0, 0.5, level) == [False, True, True, False]
    assert verdict(30.0, 0.0, level) == [True, False, True, True]
    assert verdict(30.0, 0.5, level | {TRL: 0.9}) == [True, True, False, True]
