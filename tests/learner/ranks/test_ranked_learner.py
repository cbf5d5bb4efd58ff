"""A learner of several ranks as a user starts it: `python -m learner`, real services, ranks that are killed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from echo_queue.config import Config
from echo_queue.reporting import metrics
from learner.ranks.launcher import variables
from learner.recovery import checkpoint
from tests.learner.learner_harness import LearnerHarness
from tests.processes import children_of
from tests.toml import written
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
PROMPTS = 42
IDS = sorted(f"set/0/{index}" for index in range(PROMPTS))
DEADLINE_S = 180.0


class RankedLearner:
    """`python -m learner` for a configuration. What it prints goes to a file."""

    def __init__(self, config: Config, **environ: str) -> None:
        file = config.run.dir.parent / f"ranks-{config.learner.ranks}.toml"
        file.write_text(written(config.model_dump(mode="json", exclude_defaults=True)))
        self._log = file.with_suffix(".log").open("ab+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "learner", str(file)], env=os.environ | environ, stderr=self._log
        )

    def ranks(self) -> list[int]:
        """Returns the process ids of the ranks that live, in order of rank."""
        return children_of(self.process.pid)

    def printed(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def end(self) -> int:
        """Waits for the end, and returns the exit code."""
        return self.process.wait(DEADLINE_S)


@contextmanager
def learning(config: Config, **environ: str) -> Iterator[RankedLearner]:
    learner = RankedLearner(config, **environ)
    try:
        yield learner
    finally:
        learner.process.kill()
        learner.process.wait(DEADLINE_S)


def finished(harness: LearnerHarness, config: Config) -> None:
    queue = harness.queue(config)
    audit, status = queue.audit(), queue.status()
    assert audit.ok, audit
    assert status.finished and audit.trained == PROMPTS
    assert sorted(checkpoint.trained_ids(harness.store(config))) == IDS
    lines = metrics.read(config.run.dir / "metrics.jsonl")
    assert max(int(lag) for line in lines for lag in line.lags) <= config.staleness.s


def config_of(harness: LearnerHarness, ranks: int, **learner: Any) -> Config:
    return harness.config(learner={"ranks": ranks, "rank_deadline_s": 60.0, **learner})


def test_ranks_that_are_killed_or_hang_are_named_and_nothing_is_lost(harness: LearnerHarness) -> None:
    config = config_of(harness, 2, rank_deadline_s=15.0)
    harness.submit(config, PROMPTS)
    harness.work(config, generation_s=0.2)
    queue = harness.queue(config)
    with learning(config) as learner:
        for rank, number in ((1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)):
            lineage = queue.status().learner.lineage
            begun = lambda before=lineage: queue.status().learner.lineage > before or before == 0  # noqa: E731
            wait_until(begun, "a new lineage", told=learner.printed)
            victims = learner.ranks()
            os.kill(victims[rank], number)
            wait_until(lambda v=victims: not set(v) & set(learner.ranks()), "the end of all ranks")  # type: ignore[misc]
            assert queue.audit().ok
        assert learner.end() == 0, learner.printed()
        for named in ("learner rank 1 was ended by SIGKILL", "learner rank 0 was ended by", "learner rank 1: did not"):
            assert named in learner.printed()
    finished(harness, config)
    model = AutoModelForCausalLM.from_pretrained(config.run.dir / "model")
    base = AutoModelForCausalLM.from_pretrained(config.base_model)
    text = torch.tensor([[1, 2, 3]])
    assert not torch.equal(model(text).logits, base(text).logits)
    published = queue.published()
    assert published is not None and published.version.number == 11


def test_a_checkpoint_is_continued_by_any_number_of_ranks(harness: LearnerHarness) -> None:
    alone = config_of(harness, 1)
    harness.submit(alone, PROMPTS)
    harness.work(alone, generation_s=0.1)
    queue = harness.queue(alone)
    for ranks in (3, 1):
        config = config_of(harness, ranks, checkpoint_updates=1)
        version = queue.status().learner.number
        with learning(config) as learner:
            wait_until(lambda v=version: queue.status().learner.number > v + 1, "updates", told=learner.printed)  # type: ignore[misc]
            learner.process.send_signal(signal.SIGTERM)
            assert learner.end() == 0, learner.printed()
        assert queue.audit().ok and not queue.status().finished
    config = config_of(harness, 2)
    with learning(config) as learner:
        assert learner.end() == 0, learner.printed()
    finished(harness, config)


def test_ranks_with_other_settings_are_refused_before_anything_starts(harness: LearnerHarness) -> None:
    """Each process is started by itself, as torchrun does it, here with two learning rates."""
    config = config_of(harness, 2)
    file = harness.directory / "run.toml"
    file.write_text(written(config.model_dump(mode="json", exclude_defaults=True)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "learner", str(file)],
                env=variables(rank, 2, listener, os.environ | {"ECHO_QUEUE_LEARNER__LR": lr}),
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, lr in enumerate(("0.001", "0.01"))
        ]
    for process in started:
        _, printed = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2, printed
        assert "learner rank 1" in printed and "has learner.lr = 0.01, and rank 0" in printed
    assert harness.queue(config).status().learner.lineage == 0


def test_another_number_of_processes_than_configured_is_refused(harness: LearnerHarness) -> None:
    config = config_of(harness, 2)
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with learning(config, **place) as learner:
        assert learner.end() == 2
        assert "learner.ranks: is 2, and 4 processes were started" in learner.printed()
