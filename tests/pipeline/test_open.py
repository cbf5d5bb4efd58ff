"""Who submits all day: a run that is kept open trains what comes, and ends once somebody says so.

One that had reached a limit goes on once the limit is raised.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_queue.cli.inspect.live.watcher import OPEN
from tests.pipeline.supervised_run import OWN_PROMPTS, TINY, Moment, SupervisedRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEEP_OPEN, LIMIT = "ECHO_QUEUE_RUN__KEEP_OPEN", "ECHO_QUEUE_LEARNER__MAX_UPDATES"
PROCESSES = 2
REWARD = f"""
import os
from pathlib import Path
from time import monotonic, sleep

CALLED = Path("called")
give_up = monotonic() + 120

def reward(prompts, completions, **columns):
    CALLED.mkdir(exist_ok=True)
    (CALLED / str(os.getpid())).touch()
    while len(list(CALLED.iterdir())) < {PROCESSES}:  # the other process of this environment, which has a call as well
        if monotonic() > give_up:
            raise TimeoutError("no other process was called")
        sleep(0.01)
    return [len(set(completion)) / 100 for completion in completions]
"""


def write(directory: Path, name: str, count: int) -> None:
    rows = [{"prompt": f"Sort: {number}, 3, 1."} for number in range(count)]
    (directory / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def waits_after(prompts: int) -> Moment:
    """So many prompts are trained and saved, and the run waits for more."""

    def moment(run: SupervisedRun) -> bool:
        status = run.status()
        return status is not None and status.trained == prompts and status.waits_for_prompts

    return moment


def test_a_run_beyond_its_limit_that_is_kept_open_trains_each_set_that_comes_and_is_closed_without_a_loss(
    tmp_path: Path, start: Callable[..., SupervisedRun]
) -> None:
    """Each environment has two processes, whose calls go on side by side."""
    (tmp_path / "rewards.py").write_text(REWARD)
    write(tmp_path, "own.jsonl", 10)
    write(tmp_path, "more.jsonl", 9)
    settings = OWN_PROMPTS | {"ENVIRONMENT__PROCESSES": str(PROCESSES), "LEARNER__CHECKPOINT_UPDATES": "1000"}
    run = start(**{f"ECHO_QUEUE_{key}": value for key, value in settings.items()}, **{LIMIT: "1"})
    assert run.ends() == 0, run.told()
    assert [update.version for update in run.updates()] == [1]

    run.environ |= {LIMIT: "0", KEEP_OPEN: "true"}
    run.again()
    run.until(waits_after(8))
    submit = [sys.executable, "-m", "echo_queue.cli", "submit", str(TINY), "more.jsonl", "--set", "more"]
    subprocess.run(submit, cwd=tmp_path, env=run.environ, check=True, timeout=180)
    run.until(waits_after(16))
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.told()
    said = run.output.read_text()
    assert "the run had ended at update 1, by learner.max_updates; it goes on" in said
    assert re.search(rf"^\d+:\d\d  {OPEN}", said, re.MULTILINE), said
    assert "held up" not in said.partition(OPEN)[2], "a run that waits for prompts lacks nothing"

    run.environ[KEEP_OPEN] = "false"
    run.again()
    assert run.ends() == 0, run.told()
    trained = sorted(task for update in run.updates() for task in update.trained_ids)
    assert trained == sorted([f"own/0/{index}" for index in range(10)] + [f"more/0/{index}" for index in range(9)])
    assert len(list((tmp_path / "called").iterdir())) >= PROCESSES
