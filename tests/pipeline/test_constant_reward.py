"""A reward that never differs teaches nothing: the run says so, and what to do before the same command trains."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.supervised_run import FEW, TINY, SupervisedRun, assert_every_prompt_was_trained_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONSTANT = """
def reward(prompts, completions, **columns):
    return [1.0 for completion in completions]
"""
FIXED = """
def reward(prompts, completions, **columns):
    return [len(set(completion)) / 100 for completion in completions]
"""
NOTHING = "all updates taught nothing: the samples of each prompt had equal rewards"


def test_a_constant_reward_is_told_at_the_end_and_the_fixed_one_trains(
    tmp_path: Path, start: Callable[..., SupervisedRun]
) -> None:
    (tmp_path / "rewards.py").write_text(CONSTANT)
    function = {"ECHO_QUEUE_ENVIRONMENT__KIND": "function", "ECHO_QUEUE_ENVIRONMENT__FUNCTION": "rewards:reward"}
    run = start(ECHO_QUEUE_ROLLOUT__WORKERS="1", **function, **FEW)
    assert run.ends() == 0, run.told()
    said = " ".join(run.output.read_text().split())
    assert f"! {NOTHING}" in said
    assert f"→ mend that and remove {run.config.run.dir}; `echo-queue run {TINY}` begins anew" in said

    (tmp_path / "rewards.py").write_text(FIXED)
    shutil.rmtree(run.config.run.dir)
    run.output.write_text("")
    run.again()
    assert run.ends() == 0, run.told()
    assert NOTHING not in " ".join(run.output.read_text().split())
    assert_every_prompt_was_trained_once(run)
