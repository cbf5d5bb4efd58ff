"""A run whose reward function is broken stops early and says why; once it is fixed, the command goes on."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.supervised_run import TINY, SupervisedRun, assert_every_prompt_was_trained_once

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
    run = start(ECHO_QUEUE_ROLLOUT__WORKERS="1", **function, **patience)
    assert run.ends() == 3, run.told()
    said = run.output.read_text()
    assert re.search(r"✗ run: the first \d+ prompts died and no group was completed", said), said
    assert why in said
    assert "`echo-queue run` then tries them again" in said
    assert not run.updates()
    example = re.findall(r"\(for example (\S+)\)", said)[-1]
    for command, *task in (("audit",), ("status",), ("report",), ("show", example)):
        asked = subprocess.run(
            [sys.executable, "-m", "echo_queue.cli", command, str(TINY), *task],
            cwd=tmp_path,
            env=run.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 0, f"{command} has what the queue said last: {asked.stderr}"

    (tmp_path / "rewards.py").write_text(FIXED)
    run.environ.pop("ECHO_QUEUE_ENVIRONMENT__TIMEOUT_S", None)
    run.again()
    assert run.ends() == 0, run.told()
    assert "that failed before are tried again" in run.output.read_text()
    assert_every_prompt_was_trained_once(run)
