"""Workers as an array of Slurm: its notices, and what follows them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echo_queue.records import Version
from tests.infra.rendered import ROOT
from tests.infra.slurm import Slurm
from tests.queue.clients import Clients
from tests.waiting import wait_until
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, tensors_of

DEADLINE_S = 120.0
ECHO_QUEUE = "from echo_queue.cli import main; main()"
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(64)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[WorkerHarness]:
    """A run with more work than the test has time for, and leases that outlast the test."""
    endless = save_model(tmp_path / "endless", seed=0, stop=False)
    run = WorkerHarness(
        tmp_path,
        endless,
        model={"base": str(endless), "max_prompt_tokens": 64, "max_new_tokens": 1500},
        rollout={"concurrent_groups": 2, "progress_s": 3600.0},
        learner={"batch_groups": 64},
        queue={"lease_s": 600.0},
    )
    run.begin(QUESTIONS, tensors_of(endless), wanted="3")
    yield run
    run.end()


@pytest.fixture
def slurm(run: WorkerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    slurm = Slurm(tmp_path, ROOT, {"echo-queue": ECHO_QUEUE})
    yield slurm
    slurm.end()


def generating(run: WorkerHarness, workers: int) -> Callable[[], bool]:
    def all_generate() -> bool:
        return sum(bool(one.heartbeat and one.heartbeat.tokens_per_s) for one in run.status().workers) == workers

    return all_generate


@pytest.mark.slow
def test_jobs_hand_their_tasks_back_on_slurms_signals_and_one_whose_time_is_over_begins_again(
    run: WorkerHarness, slurm: Slurm
) -> None:
    slurm.sbatch(ROOT / "infra/slurm/worker.sbatch", str(run.path), array=(0, 1))
    wait_until(generating(run, workers=2), "both jobs to generate", DEADLINE_S)
    before = {worker.name for worker in run.status().workers}
    slurm.time_is_nearly_over(0)
    assert slurm.ended(0, DEADLINE_S) == 0
    wait_until(generating(run, workers=2), "the job that was put into the queue again", DEADLINE_S)
    assert len(before | {worker.name for worker in run.status().workers}) == 3
    for task in (0, 1):
        slurm.preempt(task)
        assert slurm.ended(task, DEADLINE_S) == 0
    run.queue.reclaim()
    audit = run.queue.audit()
    assert run.status().workers == () and audit.ok and audit.leased == 0, "all tasks were handed back"
    lease = Clients.connected_as(run.config, "worker", run.store).lease("w2", Version(0, 0), 2)
    assert {task.id for task in lease.tasks} == set(lease.partials), "the next worker continues them"
