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
from echo_queue.config.toml_text import written
from echo_queue.queue import Chunk, PromptSet, RunRules
from echo_queue.records import PromptShard
from echo_queue.reporting import metrics
from learner.ranks.launcher import variables
from learner.ranks.place import LAUNCHED
from learner.recovery import checkpoint
from tests.fork_server import Program
from tests.learner.learner_harness import LearnerHarness
from tests.processes import children_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
PROMPTS = 10
DEADLINE_S = 400.0


class RankedLearner:
    """`python -m learner` for a configuration. What it prints goes to a file."""

    def __init__(self, config: Config, **environ: str) -> None:
        file = config.run.dir.parent / f"ranks-{config.learner.ranks}.toml"
        file.write_text(written(config.model_dump(mode="json", exclude_defaults=True)))
        self._log = file.with_suffix(".log")
        self.process = Program("learner", str(file), environ=os.environ | environ, log=self._log)

    def ranks(self) -> list[int]:
        """Returns the process ids of the ranks that live, in order of rank."""
        return children_of(self.process.pid)

    def printed(self) -> str:
        return self._log.read_text()

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


def finished(harness: LearnerHarness, config: Config, trained: int) -> None:
    queue = harness.queue(config)
    audit, status = queue.audit(), queue.status()
    assert audit.ok, audit
    assert status.finished and audit.trained == trained
    ids = checkpoint.trained_ids(harness.store(config))
    assert len(ids) == len(set(ids)) == trained
    lines = metrics.read(config.run.dir / "metrics.jsonl")
    assert max(int(lag) for line in lines for lag in line.lags) <= config.staleness.s


def config_of(harness: LearnerHarness, ranks: int, **learner: Any) -> Config:
    return harness.config(
        learner={"ranks": ranks, "rank_deadline_s": 60.0, **learner}, queue={"stall_deadline_s": 120.0}
    )


def test_a_rank_that_hangs_is_named_and_nothing_is_lost(harness: LearnerHarness) -> None:
    """Ranks that are killed: `tests/faults/crash_points/test_rank_crashes.py`."""
    config = config_of(harness, 2, rank_deadline_s=15.0)
    harness.submit(config, PROMPTS)
    queue = harness.queue(config)
    with learning(config) as learner:
        wait_until(lambda: queue.status().learner.lineage > 0, "a lineage", DEADLINE_S, learner.printed)
        victims = learner.ranks()
        os.kill(victims[1], signal.SIGSTOP)
        harness.work(config)  # which the other rank notices in its first update
        wait_until(lambda: not set(victims) & set(learner.ranks()), "the end of all ranks")
        assert queue.audit().ok
        assert learner.end() == 0, learner.printed()
        assert "learner rank 1: did not" in learner.printed()
    finished(harness, config, PROMPTS)
    model = AutoModelForCausalLM.from_pretrained(config.run.dir / "model")
    base = AutoModelForCausalLM.from_pretrained(config.base_model)
    text = torch.tensor([[1, 2, 3]])
    assert not torch.equal(model(text).logits, base(text).logits)


@pytest.mark.proof(kind="ranks", share=0.2)
def test_a_run_is_continued_by_any_number_of_ranks(harness: LearnerHarness) -> None:
    alone = config_of(harness, 1)
    harness.work(alone)
    queue = harness.queue(alone)
    queue.configure(RunRules.of(alone))
    for number, ranks in enumerate((3, 1, 2)):
        queue.declare(PromptSet(f"set-{number}", "made up"), [Chunk(0, 0, PROMPTS)])
        queue.submit(f"set-{number}", 0, PromptShard("nowhere", 0, PROMPTS))
        with learning(config_of(harness, ranks)) as learner:
            assert learner.end() == 0, learner.printed()
        finished(harness, alone, (number + 1) * PROMPTS)
    versions = [line.version for line in metrics.read(alone.run.dir / "metrics.jsonl")]
    assert versions == list(range(1, len(versions) + 1))


def by_hand(environ: dict[str, str]) -> dict[str, str]:
    """The variables of a rank that the launcher did not start."""
    return {name: value for name, value in environ.items() if name != LAUNCHED}


def test_ranks_with_other_settings_are_refused_before_anything_starts(harness: LearnerHarness) -> None:
    """Each process is started by itself, as torchrun does it. A machine's own name is no such setting."""
    other = {
        "ECHO_QUEUE_LEARNER__LR": "0.01",
        "ECHO_QUEUE_SELECTION__SHUFFLE_ROUNDS": "2",
        "ECHO_QUEUE_WEIGHTS__PART_BYTES": "4096",
        "ECHO_QUEUE_ROLLOUT__MACHINE": "another",
    }
    config = config_of(harness, 2)
    file = harness.directory / "run.toml"
    file.write_text(written(config.model_dump(mode="json", exclude_defaults=True)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "learner", str(file)],
                env=by_hand(variables(rank, 2, listener, os.environ | settings)),
                pass_fds=[listener.fileno()],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, settings in enumerate(({"ECHO_QUEUE_LEARNER__LR": "0.001"}, other))
        ]
    for process in started:
        _, printed = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2, printed
        assert "learner rank 1" in printed and "has learner.lr = 0.01, and rank 0" in printed
        assert "has selection.shuffle_rounds = 2" in printed and "has weights.part_bytes = 4096" in printed
        assert "rollout.machine" not in printed
    assert harness.queue(config).status().learner.lineage == 0


def test_another_number_of_processes_than_configured_is_refused(harness: LearnerHarness) -> None:
    config = config_of(harness, 2)
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with learning(config, **place) as learner:
        assert learner.end() == 2
        assert "learner.ranks: is 2, and 4 processes were started" in learner.printed()
