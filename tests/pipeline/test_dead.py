"""A run whose reward function is broken stops early and says why; once it is fixed, the command goes on.

One whose reward function fails for some prompts alone trains the others first.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_queue.reporting import outcome
from tests.pipeline.supervised_run import OWN_PROMPTS, TINY, SupervisedRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROMPTS = 12
BROKEN = """
def reward(prompts, completions, **columns):
    return [float(len(answer)) for answer in columns["solution"]]
"""
UNDEFINED = """
def reward(prompts, completions, **columns):
    return [float("nan") for completion in completions]
"""
SLOW = """
from time import sleep

def reward(prompts, completions, **columns):
    sleep(3600)
"""
FAILS_FOR_ONE = """
def reward(prompts, completions, **columns):
    if prompts[0] == "Sort: 7, 3, 1.":
        raise ValueError("nobody knows this answer")
    return [len(set(completion)) / 100 for completion in completions]
"""
FIXED = """
def reward(prompts, completions, **columns):
    return [len(set(completion)) / 100 for completion in completions]
"""


@pytest.fixture
def begin(tmp_path: Path, start: Callable[..., SupervisedRun]) -> Callable[..., SupervisedRun]:
    """Starts the tiny run on a few prompts with the reward function whose code it is given."""
    rows = [{"prompt": f"Sort: {number}, 3, 1."} for number in range(PROMPTS)]
    (tmp_path / "own.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    def begin(reward: str, **overrides: str) -> SupervisedRun:
        (tmp_path / "rewards.py").write_text(reward)
        return start(**{f"ECHO_QUEUE_{key}": value for key, value in (OWN_PROMPTS | overrides).items()})

    return begin


def test_a_broken_reward_ends_a_run_early_one_that_fails_for_a_prompt_trains_the_others_and_the_fixed_one_all(
    tmp_path: Path, begin: Callable[..., SupervisedRun]
) -> None:
    run = begin(BROKEN)
    ends_early(run, "KeyError: 'solution'")
    (tmp_path / "rewards.py").write_text(FAILS_FOR_ONE)
    run.again()
    leaves_one(run)
    (tmp_path / "rewards.py").write_text(FIXED)
    run.again()
    trains_all(run)


@pytest.mark.proof(kind="whole runs", share=0.15)
@pytest.mark.parametrize(
    ("broken", "why", "overrides"),
    [
        (UNDEFINED, "the environment returned nan as reward 0", {}),
        (SLOW, "environment.timeout_s = 0.5", {"ENVIRONMENT__TIMEOUT_S": "0.5"}),
    ],
    ids=["returns nan", "is too slow"],
)
def test_every_way_in_which_a_reward_function_is_broken_ends_a_run_early(
    begin: Callable[..., SupervisedRun], broken: str, why: str, overrides: dict[str, str]
) -> None:
    ends_early(begin(broken, **overrides), why)


def ends_early(run: SupervisedRun, why: str) -> None:
    assert run.ends() == 3, run.told()
    said = run.output.read_text()
    assert re.search(r"✗ run: the first \d+ prompts died and no group was completed", said), said
    assert why in said
    assert f"`echo-queue run {TINY}` then tries them again" in said
    assert not run.updates()
    example = re.findall(r"\(for example (\S+)\)", said)[-1]
    for command, *task in (("audit",), ("status",), ("report",), ("show", example)):
        asked = run.asked(command, *task)
        assert asked.exit_code == 0, f"{command} has what the queue said last: {asked.output}"


def leaves_one(run: SupervisedRun) -> None:
    """The run has trained all prompts but one, and says so at its end."""
    assert run.ends() == 3, run.told()
    said = run.output.read_text()
    assert "that failed before are tried again" in said
    assert "✗ 1 prompt died and is not in the model:" in said
    assert re.search(r"1× ValueError: nobody knows this answer .*\(for example own/0/7\)", said), said
    assert f"→ fix that; `echo-queue run {TINY}` then tries it again" in said
    assert trained_ids(run) == sorted(f"own/0/{index}" for index in range(PROMPTS) if index != 7)
    kept = outcome.read(run.config)
    assert kept and not kept.finished and not kept.early
    page = (run.config.run.dir / "report.html").read_text(encoding="utf-8")
    assert "<b>1</b><span>prompts died and are not in the model</span>" in page


def trains_all(run: SupervisedRun) -> None:
    assert run.ends() == 0, run.told()
    assert trained_ids(run) == sorted(f"own/0/{index}" for index in range(PROMPTS))
    kept = outcome.read(run.config)
    assert kept and kept.finished


def trained_ids(run: SupervisedRun) -> list[str]:
    return sorted(task for update in run.updates() for task in update.trained_ids)
