"""A run whose reward function is broken stops early and says why; once it is fixed, the command goes on.

One whose reward function fails for some prompts alone trains the others first.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_queue.reporting import outcome
from tests.pipeline.supervised_run import (
    FEW,
    OWN_PROMPTS,
    TINY,
    SupervisedRun,
    assert_every_prompt_was_trained_once,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (BROKEN, "KeyError: 'solution'"),
        pytest.param(UNDEFINED, "the environment returned nan as reward 0", marks=pytest.mark.proof),
        pytest.param(SLOW, "environment.timeout_s = 0.5", marks=pytest.mark.proof),
    ],
    ids=["raises", "returns nan", "is too slow"],
)
def test_a_broken_reward_function_ends_the_run_early_and_the_fixed_one_finishes_it(
    tmp_path: Path, start: Callable[..., SupervisedRun], broken: str, why: str
) -> None:
    (tmp_path / "rewards.py").write_text(broken)
    function = {"ECHO_QUEUE_ENVIRONMENT__KIND": "function", "ECHO_QUEUE_ENVIRONMENT__FUNCTION": "rewards:reward"}
    patience = {"ECHO_QUEUE_ENVIRONMENT__TIMEOUT_S": "0.5"} if broken == SLOW else {}
    run = start(ECHO_QUEUE_ROLLOUT__WORKERS="1", **function, **patience, **FEW)
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

    (tmp_path / "rewards.py").write_text(FIXED)
    run.environ.pop("ECHO_QUEUE_ENVIRONMENT__TIMEOUT_S", None)
    run.again()
    assert run.ends() == 0, run.told()
    assert "that failed before are tried again" in run.output.read_text()
    assert_every_prompt_was_trained_once(run)


def test_a_prompt_that_died_is_told_at_the_end_and_trained_by_the_same_command_once_it_can_be(
    tmp_path: Path, start: Callable[..., SupervisedRun]
) -> None:
    rows = [{"prompt": f"Sort: {number}, 3, 1."} for number in range(12)]
    (tmp_path / "own.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    (tmp_path / "rewards.py").write_text(FAILS_FOR_ONE)
    run = start(**{f"ECHO_QUEUE_{key}": value for key, value in OWN_PROMPTS.items()})
    assert run.ends() == 3, run.told()
    said = run.output.read_text()
    assert "✗ 1 prompt died and is not in the model:" in said
    assert re.search(r"1× ValueError: nobody knows this answer .*\(for example own/0/7\)", said), said
    assert f"→ fix that; `echo-queue run {TINY}` then tries it again" in said
    assert trained_ids(run) == sorted(f"own/0/{index}" for index in range(12) if index != 7)
    kept = outcome.read(run.config)
    assert kept and not kept.finished and not kept.early
    page = (run.config.run.dir / "report.html").read_text(encoding="utf-8")
    assert "<b>1</b><span>prompts died and are not in the model</span>" in page

    (tmp_path / "rewards.py").write_text(FIXED)
    run.again()
    assert run.ends() == 0, run.told()
    assert trained_ids(run) == sorted(f"own/0/{index}" for index in range(12))
    kept = outcome.read(run.config)
    assert kept and kept.finished


def trained_ids(run: SupervisedRun) -> list[str]:
    return sorted(task for update in run.updates() for task in update.trained_ids)
