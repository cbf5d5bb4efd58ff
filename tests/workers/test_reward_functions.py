"""Several reward functions through the scoring process, as the worker uses it: sum, parts and failures."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from echo_queue.config.rewards import Reward, weighted
from tests.workers.asking import answered, score
from tests.workers.test_environments import answers, scorer
from workers.environments import ScoringRequest
from workers.environments.calls import Call, ScoringError
from workers.environments.protocol import Rewards
from workers.environments.scorer import Scorer

REWARDS = "tests.workers.rewards"
Tables = Mapping[str, Mapping[str, Any]]


def functions(**weights: float) -> dict[str, dict[str, Any]]:
    return {name: {"function": f"{REWARDS}:{name}", "weight": weight} for name, weight in weights.items()}


def scored(tables: Tables, request: ScoringRequest) -> Rewards:
    with scorer(kind="function", rewards=tables) as one:
        return answered(one, Call(request)).rewards


def test_a_reward_is_the_weighted_sum_of_what_each_function_gave() -> None:
    found = scored(functions(matches_column=2.0, counts_ids=-0.5), answers(["yes", "no"], wanted="yes"))
    assert found == Rewards([0.5, -1.0], {"matches_column": [1.0, 0.0], "counts_ids": [3.0, 2.0]})


def test_the_only_function_without_a_table_has_its_part_too() -> None:
    with scorer(kind="function", function=f"{REWARDS}:counts_ids") as one:
        assert answered(one, Call(answers(["abc"]))).rewards == Rewards([3.0], {"reward": [3.0]})


def test_a_function_of_weight_0_is_reported_and_changes_no_reward() -> None:
    found = scored(functions(matches_column=1.0, counts_ids=0.0), answers(["no"], wanted="yes"))
    assert found == Rewards([0.0], {"matches_column": [0.0], "counts_ids": [2.0]})


def test_a_function_gets_length_end_and_version_if_it_has_parameters_of_these_names() -> None:
    request = ScoringRequest("q", ["a", "b"], [[1], [1, 2]], {}, ["stop", "length"], [7, 8])
    found = scored(functions(tells=1.0, tells_versions=1.0), request)
    assert found.parts == {"tells": [1.0, 102.0], "tells_versions": [7.0, 8.0]}


def test_coroutines_of_a_group_wait_side_by_side() -> None:
    one = {"function": f"{REWARDS}:meets"}
    assert scored({"first": one, "second": one, "third": one}, answers(["3"])).values == [3.0]


@pytest.fixture(scope="module")
def misbehaving() -> Iterator[Scorer]:
    """One scorer for all ways to misbehave: the others would have given a reward."""
    tables = functions(counts_ids=1.0, misbehaves=1.0)
    with scorer(kind="function", rewards=tables, timeout_s=2.0) as one:
        yield one


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (["raise"], r"no such luck \(reward misbehaves, rewards.py, line \d+\)$"),
        (["short"], r"given 1 completions .* length 0 \(reward misbehaves\)$"),
        (["nan"], r"returned nan as reward 0 \(reward misbehaves\)$"),
        (["one number"], r"returned a float; return a list .* \(reward misbehaves\)$"),
        (["hang"], r"longer than environment.timeout_s = 2.0 \(reward misbehaves\)$"),
        (["die"], r"process ended with 7 .* \(reward misbehaves\)$"),
    ],
)
def test_a_function_that_fails_fails_the_call_by_its_name(misbehaving: Scorer, asked: list[str], reason: str) -> None:
    with pytest.raises(ScoringError, match=reason):
        score(misbehaving, answers(asked))
    assert score(misbehaving, answers(["well"])) == [5.0]


def test_coroutines_that_fail_do_so_by_their_names_and_end_those_that_wait() -> None:
    tables = {"waits": {"function": f"{REWARDS}:meets"}, "fails": {"function": f"{REWARDS}:fails_later"}}
    with scorer(kind="function", rewards=tables) as one:
        for _ in range(2):
            with pytest.raises(ScoringError, match=r"later \(reward fails, rewards.py, line \d+\)$"):
                score(one, answers(["99"]))


def test_coroutines_that_hang_fail_the_call_by_their_names() -> None:
    waits = {"function": f"{REWARDS}:meets"}
    tables = {"first": waits, **functions(counts_ids=1.0), "second": waits}
    told = r"environment.timeout_s = 2.0 \(reward first and second\)$"
    with scorer(kind="function", rewards=tables, timeout_s=2.0) as one, pytest.raises(ScoringError, match=told):
        score(one, answers(["99"]))


def test_overlong_answers_are_punished_as_in_dapo() -> None:
    tables = {"short": {"overlong": {"max_tokens": 10, "cache_tokens": 4}}}
    lengths = [0, 6, 7, 8, 10, 11, 40]
    request = ScoringRequest("q", ["x"] * 7, [[1] * n for n in lengths], {}, ["stop"] * 7, [0] * 7)
    assert scored(tables, request).values == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0, -1.0]


@pytest.mark.parametrize("prompt", ["q", [{"role": "user", "content": "q"}]], ids=["text", "chat"])
def test_a_format_is_kept_from_beginning_to_end(prompt: Any) -> None:
    tables = {"form": {"format": {"pattern": r"<think>.*</think>\s*\d+"}}}
    completions = ["<think>a\nb</think>\n42", "<think>a</think> 42.", " <think></think>1", "<think></think>1"]
    assert scored(tables, answers(completions, prompt)).values == [1.0, 0.0, 0.0, 1.0]


def test_a_sum_does_not_depend_on_the_order_of_its_functions() -> None:
    tables = {name: Reward(function="a:b") for name in "abc"}
    parts = {"a": 1e16, "b": 1.0, "c": -1e16}
    assert weighted(parts, tables) == weighted(dict(reversed(parts.items())), tables) == 1.0
