"""A token brings what all workers of a run share, and nothing that belongs to one machine."""

from pathlib import Path
from typing import Any, get_args

import pytest

from echo_queue.config import Config
from echo_queue.config.checks import contradictions
from echo_queue.config.keys import WORKERS, keys_of
from echo_queue.fleet.invitation.settings import code_named, foreign, shared

RUN = {"run": {"name": "home", "dir": "runs/home"}}


def test_a_machine_that_joins_reads_the_commit_that_the_learner_reads() -> None:
    model = {"base": "owner/model", "revision": "0123abc"}
    assert shared(Config.model_validate(RUN | {"model": model}))["model"] == model


def test_a_machine_that_joins_asks_the_users_function_as_often_as_the_others() -> None:
    environment = {"kind": "function", "function": "judge:score", "concurrent_calls": 4}
    assert shared(Config.model_validate(RUN | {"environment": environment}))["environment"] == environment


def test_a_machine_that_joins_answers_evaluations_as_the_others_do_and_learns_of_no_source() -> None:
    math = {"kind": "function", "function": "judge:score", "processes": 3}
    held_out = {"name": "held-out", "source": "/home/me/held.jsonl", "samples": 4, "every_updates": 5}
    settings = RUN | {"evaluation": [held_out | {"environment": math}, {"name": "easy", "environment": {}}]}
    evaluations = shared(Config.model_validate(settings))["evaluation"]
    assert evaluations == [
        {"name": "held-out", "samples": 4, "environment": {"kind": "function", "function": "judge:score"}},
        {"name": "easy", "environment": {}},
    ]


@pytest.mark.parametrize(
    ("evaluation", "refused"),
    [
        ([{"name": "a"}, {"name": "b", "source": "/etc/passwd"}], ["evaluation.source"]),
        ([{"name": "a", "environment": {"processes": 64}}], ["evaluation.environment.processes"]),
        ([{"name": "a", "environment": "b"}], ["evaluation.environment"]),
        ({"name": "a"}, ["evaluation"]),
        (["a"], ["evaluation"]),
    ],
)
def test_a_token_with_anything_else_about_evaluations_is_refused(evaluation: Any, refused: list[str]) -> None:
    assert list(foreign({"evaluation": evaluation})) == refused


def test_the_code_of_every_evaluation_is_named_to_whoever_joins() -> None:
    own = {"environment": {"kind": "function", "function": "judge:score"}}
    other = {"environment": {"kind": "interactive", "function": "game:Game"}}
    assert code_named(own | {"evaluation": [{"name": "a"} | other, {"name": "b"} | own, {"name": "c"}]}) == (
        "judge:score, game:Game"
    )
    assert code_named({"evaluation": [{"name": "a"} | other]}) == "game:Game"
    assert code_named({"evaluation": [{"name": "a"}]}) == ""


def test_no_token_names_a_path_or_an_address_but_the_services() -> None:
    shared_keys = [key for key in keys_of(Config) if key.whose is WORKERS]
    kinds = {key.path: {key.field.annotation, *get_args(key.field.annotation)} for key in shared_keys}
    assert not [path for path, kind in kinds.items() if Path in kind]
    assert [path for path in kinds if path.endswith(("url", "endpoint", "host"))] == ["redis.url", "store.url"]


@pytest.mark.parametrize(
    "settings",
    [
        {"rollout": {"top_p": 0.75}, "learner": {"correction": {"preset": "cispo"}}},
        {"rollout": {"top_p": 0.75}, "learner": {"loss": "mine:loss"}},
        {"queue": {"lease_s": 120.0}, "telemetry": {"heartbeat_s": 20.0}},
        {"prompts": {"set": "train", "source": "a.jsonl"}, "evaluation": [{"name": "prompts", "source": "b.jsonl"}]},
    ],
    ids=[
        "a nucleus with a correction that bears it",
        "a nucleus with an own loss",
        "slow heartbeats",
        "an evaluation with the name that a training set has by default",
    ],
)
def test_what_joins_a_valid_run_is_valid_by_itself(settings: dict[str, Any]) -> None:
    config = Config.model_validate(RUN | settings)
    assert not list(contradictions(config))
    settings = shared(config)
    assert not list(foreign(settings))
    assert not list(contradictions(Config.model_validate(settings | RUN)))


def test_a_machine_that_joins_makes_the_groups_of_all_components_as_the_others_do() -> None:
    judged = {"kind": "function", "function": "judge:score", "processes": 3}
    first = {"name": "math", "source": "/home/me/math.jsonl", "weight": 4, "max_new_tokens": 5, "max_prompt_tokens": 9}
    settings = RUN | {"mixture": [first | {"environment": judged}, {"name": "words"}]}
    brought = shared(Config.model_validate(settings))
    assert brought["mixture"] == [
        {"name": "math", "max_new_tokens": 5, "environment": {"kind": "function", "function": "judge:score"}},
        {"name": "words"},
    ]
    assert code_named(brought) == "judge:score", "whoever joins is told whose code it runs"
    assert list(foreign({"mixture": [{"name": "a", "source": "/etc/passwd"}]})) == ["mixture.source"]
