"""Calls of an environment go on side by side: in one process where they wait, in several where they compute."""

import time
from pathlib import Path

import pytest

from tests.workers.asking import all_answered, answered
from tests.workers.test_environments import answers, scorer
from workers.environments import Turn
from workers.environments import scorer as scorer_module
from workers.environments.calls import Call, ScoringError
from workers.environments.scorer import Scorer

MODULE = "tests.workers.side_by_side"
DEADLINE_S = 30.0


def judged(completion: str, meet: int) -> Call:
    return Call(answers([completion], meet=meet), about=completion)


def ended(scorer: Scorer, *calls: Call) -> dict[str, Call]:
    return {call.about: call for call in all_answered(scorer, *calls)}


def test_async_rewards_wait_side_by_side_in_one_process() -> None:
    with scorer(kind="function", function=f"{MODULE}:judges", processes=1) as one:
        calls = all_answered(one, *(judged("x", meet=8) for _ in range(8)))
        assert len({reward for call in calls for reward in call.rewards.values}) == 1


def test_no_more_calls_are_under_way_in_a_process_than_may_be() -> None:
    with scorer(kind="function", function=f"{MODULE}:judges", processes=1, concurrent_calls=3) as one:
        for _ in range(6):
            one.ask(judged("x", meet=3))
        done = 0
        while done < 6:
            done += len(one.wait(1.0))
            assert one.under_way <= 3


def test_async_sessions_wait_side_by_side() -> None:
    with scorer(kind="interactive", function=f"{MODULE}:Tools", processes=1) as one:
        first = all_answered(one, *(Call(Turn("q", {"meet": 4}, seed, ["go"]), session=seed) for seed in range(4)))
        assert len({call.reply.observation for call in first}) == 1
        assert answered(one, Call(Turn("q", {"meet": 4}, 0, ["go", "end"]), session=0)).reply.reward == 1.0


def test_calls_that_block_get_processes(tmp_path: Path) -> None:
    with scorer(kind="function", function=f"{MODULE}:computes", processes=2) as one:
        calls = all_answered(one, *(Call(answers(["x"], str(tmp_path), meet=2)) for _ in range(2)))
        assert len({call.rewards.values[0] for call in calls}) == 2


def test_a_session_stays_with_its_process(tmp_path: Path) -> None:
    with scorer(kind="interactive", function=f"{MODULE}:Places", processes=2, max_turns=9) as one:
        said: dict[int, list[str]] = {0: ["go"], 1: ["go"]}
        for _ in range(3):
            turns = [
                Call(Turn(str(tmp_path), {"meet": 2}, seed, said[seed]), session=seed, about=seed) for seed in said
            ]
            homes = {call.about: call.reply.observation for call in all_answered(one, *turns)}
            assert len(set(homes.values())) == 2
            said = {seed: [*texts, str(homes[seed])] for seed, texts in said.items()}
            assert all(set(texts[1:]) == {homes[seed]} for seed, texts in said.items())


def test_the_oldest_calls_go_first(tmp_path: Path) -> None:
    with scorer(kind="function", function=f"{MODULE}:computes", processes=1) as one:
        calls = [Call(answers(["x"], str(tmp_path), meet=1), age=age, about=age) for age in (3.0, 1.0, 2.0)]
        assert [call.about for call in all_answered(one, *calls)] == [1.0, 2.0, 3.0]


def test_a_call_that_waits_too_long_is_cancelled_alone() -> None:
    with scorer(kind="function", function=f"{MODULE}:judges", processes=1, timeout_s=2.0) as one:
        calls = ended(one, judged("x", meet=2), judged("hang", meet=2))
        with pytest.raises(ScoringError, match=r"timeout_s = 2\.0"):
            _ = calls["hang"].rewards.values
        assert answered(one, judged("y", meet=2)).rewards.values == calls["x"].rewards.values, "the process is the same"


@pytest.mark.slow
def test_a_call_that_waits_too_long_is_cancelled_while_others_are_answered_all_the_time() -> None:
    with scorer(kind="function", function=f"{MODULE}:judges", processes=1, timeout_s=1.0) as one:
        late = judged("hang", meet=1)
        for call in (late, *(judged("soon", meet=1) for _ in range(4))):
            one.ask(call)
        give_up = time.monotonic() + DEADLINE_S
        while late.answer is None:
            assert time.monotonic() < give_up, "the late call was never cancelled"
            for call in one.wait(1.0):
                if call is not late:
                    one.ask(Call(call.question, about="soon"))
        with pytest.raises(ScoringError, match=r"timeout_s = 1\.0"):
            _ = late.rewards.values


@pytest.mark.slow
@pytest.mark.parametrize(("completion", "reason"), [("block", "timeout_s = 4"), ("die", "ended with 7")])
def test_a_call_that_hangs_or_ends_its_process_costs_the_calls_beside_it_nothing(
    completion: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_module, "CANCEL_S", 0.5)
    with scorer(kind="function", function=f"{MODULE}:judges", processes=1, timeout_s=4.0) as one:
        warm = answered(one, judged("w", meet=1)).rewards.values
        calls = ended(one, judged(completion, meet=1), *(judged(name, meet=1) for name in "abc"))
        with pytest.raises(ScoringError, match=reason):
            _ = calls[completion].rewards.values
        assert all(calls[name].rewards.values for name in "abc") and calls["c"].rewards.values != warm
