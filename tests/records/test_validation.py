"""A group is trained only if a worker of this configuration can have made it."""

import dataclasses
import math

import numpy as np
import pytest

from echo_queue.config import Config
from echo_queue.config.checks import largest_group_bytes
from echo_queue.config.rewards import REWARDS_MAX
from echo_queue.records import Group, Observed, Sample, Span, Version
from echo_queue.records.group_codec import CodecError, decode, encode
from echo_queue.records.validation import Cause, GroupLimits, GroupValidator, check, check_versions

VOCABULARY = 40
LIMITS = GroupLimits(samples=3, vocabulary=VOCABULARY, prompt_tokens=8, new_tokens=6, reward_min=-1.0, reward_max=2.0)
TURNS = dataclasses.replace(LIMITS, turns=3)
NEWEST = Version(2, 7)


def sample(length: int = 4, **changes: object) -> Sample:
    tokens = np.arange(length, dtype=np.int32)
    made = Sample(tokens, np.full(length, -0.5, np.float32), (Span(0, 5),), 1.0, "stop")
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def group(*samples: Sample, **changes: object) -> Group:
    prompt = np.arange(5, dtype=np.int32)
    few = (*samples, sample(), sample(), sample())[:3]
    made = Group("set/0/1", "set", 0, 1, 0, "w1", 2, prompt, few)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def turns(*ranges: tuple[int, int], length: int = 6, **changes: object) -> Sample:
    """A sample in which the environment wrote these ranges."""
    logprobs = np.full(length, -0.5, np.float32)
    for start, end in ranges:
        logprobs[start:end] = 0
    return sample(length, observed=tuple(Observed(*part) for part in ranges), logprobs=logprobs, **changes)


def refusal(bad: Group, limits: GroupLimits = LIMITS) -> tuple[str, str]:
    with pytest.raises(CodecError) as refused:
        check(bad, limits)
        check_versions(bad, NEWEST)
    return refused.value.cause, str(refused.value)


def test_a_good_group_passes() -> None:
    whole = group(sample(6, finish="length"), sample(1), sample(logprobs=np.zeros(4, np.float32)))
    check(whole, LIMITS)
    check_versions(whole, NEWEST)
    check_versions(group(sample(spans=(Span(0, 4), Span(2, 7)))), NEWEST)
    check_versions(group(lineage=1), NEWEST)


@pytest.mark.parametrize(
    ("bad", "cause", "reason"),
    [
        (group(samples=(sample(), sample())), "shape", "2 samples; rollout.group_size is 3"),
        (group(prompt=np.array([], np.int32)), "shape", "its prompt has 0 tokens"),
        (group(prompt=np.zeros(9, np.int32)), "shape", "its prompt has 9 tokens; model.max_prompt_tokens is 8"),
        (group(prompt=np.array([VOCABULARY], np.int32)), "tokens", "outside the model's vocabulary of 40"),
        (group(prompt=np.array([-1], np.int32)), "tokens", "outside the model's vocabulary of 40"),
        (group(sample(0)), "shape", "sample 0 has 0 tokens"),
        (group(sample(), sample(7)), "shape", "sample 1 has 7 tokens; model.max_new_tokens is 6"),
        (group(sample(tokens=np.full(4, VOCABULARY, np.int32))), "tokens", "sample 0 has token ids outside"),
        (group(sample(logprobs=np.array([], np.float32))), "logprobs", "0 behaviour log-probabilities for 4 tokens"),
        (group(sample(logprobs=np.full(4, np.nan, np.float32))), "logprobs", "not finite; off-policy"),
        (group(sample(logprobs=np.full(4, -np.inf, np.float32))), "logprobs", "not finite"),
        (group(sample(logprobs=np.full(4, 0.01, np.float32))), "logprobs", "to 0.01"),
        (group(sample(logprobs=np.full(4, -1e30, np.float32))), "logprobs", "from -1e+30"),
        (group(sample(reward=math.inf)), "reward", "the reward inf"),
        (group(sample(reward=2.5)), "reward", "environment.reward_min is -1, reward_max 2"),
        (group(sample(finish="abort")), "finish", "cut off before its end"),
        (group(sample(5, finish="length")), "finish", "ends by its length with 5 tokens"),
        (group(lineage=3), "versions", "lineage 3; this learner is 2"),
        (group(sample(spans=(Span(0, 8),))), "versions", "version 8; the newest handed out is 7"),
        (group(sample(spans=(Span(0, 5), Span(1, 4)))), "versions", "sample 0 goes back to older weights"),
    ],
)
def test_what_no_worker_can_have_made_is_refused_with_its_cause(bad: Group, cause: Cause, reason: str) -> None:
    found, text = refusal(bad)
    assert found == cause
    assert reason in text


def test_a_sample_of_several_turns_passes_even_if_an_observation_filled_its_room() -> None:
    check(group(turns((2, 3)), turns((1, 2), (4, 6), finish="length")), TURNS)


@pytest.mark.parametrize(
    ("bad", "limits", "cause", "reason"),
    [
        (turns((2, 3)), LIMITS, "observed", "sample 0 has 1 observations; this environment takes 1 turns"),
        (turns((1, 2), (3, 4), (5, 6)), TURNS, "observed", "has 3 observations; this environment takes 3 turns"),
        (turns((0, 6)), TURNS, "observed", "without what the model wrote before each"),
        (turns((0, 2)), TURNS, "observed", "without what the model wrote before each"),
        (
            turns((2, 3), tokens=np.array([0, 0, VOCABULARY, 0, 0, 0])),
            TURNS,
            "tokens",
            "outside the model's vocabulary",
        ),
        (turns((2, 6), length=7), TURNS, "shape", "7 tokens; model.max_new_tokens is 6"),
    ],
)
def test_turns_that_no_worker_can_have_taken_are_refused(
    bad: Sample, limits: GroupLimits, cause: str, reason: str
) -> None:
    found, text = refusal(group(bad), limits)
    assert found == cause
    assert reason in text


def test_a_worker_that_sends_nothing_good_is_named_among_others_that_do() -> None:
    validator = GroupValidator(LIMITS, NEWEST, patience=3)
    for number in range(3):
        assert validator.find_unworthy() == []
        validator.bad("rotten", f"a/0/{number}", f"reason {number}")
        validator.good("fine")
    (found,) = validator.find_unworthy()
    assert (found.name, found.tasks) == ("rotten", ["a/0/0", "a/0/1", "a/0/2"])
    assert found.reason == "3 groups in a row could not be trained; the last: reason 2"
    assert (validator.find_unworthy(), validator.unworthy) == ([], [found])
    validator.good("fine")
    assert validator.unworthy == []


def test_one_bad_group_of_a_suspended_worker_is_enough() -> None:
    validator = GroupValidator(LIMITS, NEWEST, patience=3)
    validator.bad("rotten", "a/0/0", "why")
    validator.bad("careless", "a/0/1", "why")
    assert validator.find_unworthy() == []
    validator.suspended.add("rotten")
    assert [(one.name, one.tasks) for one in validator.find_unworthy()] == [("rotten", ["a/0/0"])]


def test_a_worker_that_now_and_then_sends_a_bad_group_is_not_unworthy() -> None:
    validator = GroupValidator(LIMITS, NEWEST, patience=3)
    for _ in range(20):
        validator.bad("careless", "a/0/0", "why")
        validator.bad("careless", "a/0/1", "why")
        validator.good("careless")
        assert validator.find_unworthy() == []


@pytest.mark.parametrize(("samples", "length"), [(2, 1), (64, 1), (400, 3), (16, 2_000)])
def test_the_largest_group_of_a_configuration_fits_the_smallest_cap_that_it_allows(samples: int, length: int) -> None:
    """Each number as long as it can be; what a worker of this configuration makes is never refused for its size."""
    values = {"run": {"name": "r", "dir": "r"}, "rollout": {"group_size": samples}, "model": {"max_new_tokens": length}}
    cap = largest_group_bytes(Config.model_validate(values))
    one = Sample(np.zeros(length, np.int32), np.zeros(length, "<f4"), (Span(0, 999_999_999),), -1 / 3e-200, "length")
    name = "n" * 64
    whole = Group(
        f"{name}/999999/999999999", name, 10**6, 10**9, 99, "w" * 100, 10**6, np.zeros(256, "<i4"), (one,) * samples
    )
    assert len(decode(encode(whole), cap).samples) == samples


def test_so_does_the_largest_group_of_the_most_reward_functions() -> None:
    names = tuple(f"{number:02}".ljust(64, "n") for number in range(REWARDS_MAX))
    values = {
        "run": {"name": "r", "dir": "r"},
        "rollout": {"group_size": 400},
        "model": {"max_new_tokens": 1},
        "environment": {"kind": "function", "rewards": {name: {"function": "a:b"} for name in names}},
    }
    parts = (-1 / 3e-200,) * len(names)
    one = Sample(np.zeros(1, "<i4"), np.zeros(1, "<f4"), (Span(0, 10**9),), -1 / 3e-200, "length", parts=parts)
    whole = Group("n" * 99, "n" * 64, 10**6, 10**6, 99, "w" * 99, 0, np.zeros(256, "<i4"), (one,) * 400, names)
    assert len(decode(encode(whole), largest_group_bytes(Config.model_validate(values))).samples) == 400


@pytest.mark.parametrize("turns", [2, 100])
def test_so_does_the_largest_group_of_many_turns(turns: int) -> None:
    values = {
        "run": {"name": "r", "dir": "r"},
        "rollout": {"group_size": 400},
        "model": {"max_new_tokens": 2 * turns},
        "environment": {"kind": "interactive", "function": "a:B", "max_turns": turns},
    }
    length, shift = 2 * turns, 10**6
    observed = tuple(Observed(2 * place + 1, 2 * place + 2) for place in range(turns - 1))
    one = Sample(np.zeros(length, "<i4"), np.zeros(length, "<f4"), (Span(0, shift),), -1 / 3e-200, "length", observed)
    whole = Group("n" * 64, "n" * 64, shift, shift, 99, "w" * 100, shift, np.zeros(256, "<i4"), (one,) * 400)
    assert len(decode(encode(whole), largest_group_bytes(Config.model_validate(values))).samples) == 400


def test_a_learner_allows_what_its_configuration_says() -> None:
    config = Config.model_validate(
        {
            "run": {"name": "r", "dir": "r"},
            "rollout": {"group_size": 5},
            "model": {"max_prompt_tokens": 9, "max_new_tokens": 11},
            "environment": {"reward_min": -2.0, "reward_max": 3.0},
        }
    )
    assert GroupLimits.of(config, 100) == GroupLimits(5, 100, 9, 11, -2.0, 3.0, turns=1)


def test_a_group_of_a_component_keeps_to_its_limits_and_its_environment() -> None:
    config = Config.model_validate(
        {
            "run": {"name": "r", "dir": "r"},
            "rollout": {"group_size": 5},
            "model": {"max_prompt_tokens": 9, "max_new_tokens": 11},
            "mixture": [
                {"name": "short", "max_new_tokens": 3, "environment": {"reward_max": 2.0}},
                {"name": "played", "environment": {"kind": "interactive", "function": "a:B", "max_turns": 4}},
            ],
        }
    )
    limits = GroupLimits.of(config, 100)
    short, played = (limits.of_set(name) for name in ("short.more", "played"))
    assert (short.new_tokens, short.reward_max, short.turns) == (3, 2.0, 1)
    assert (played.new_tokens, played.reward_max, played.turns) == (11, 1e6, 4)
    assert short.tokens_key == "the longest answer of the component short"
