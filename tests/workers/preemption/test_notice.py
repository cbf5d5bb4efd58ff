"""A worker, as a real process, whose metadata server gives it notice."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.workers.preemption.servers import Ec2, serving
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, generating, tensors_of

Begin = Callable[..., WorkerHarness]
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(8)]
DEADLINE_S = 120.0
VARIABLE = "ECHO_QUEUE_ROLLOUT__PREEMPTION__"

pytestmark = pytest.mark.slow


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2]:
    """The metadata server that each worker of the test asks."""
    with serving(Ec2()) as one:
        monkeypatch.setenv(f"{VARIABLE}WATCH", "aws")
        monkeypatch.setenv(f"{VARIABLE}ENDPOINT", one.url)
        monkeypatch.setenv(f"{VARIABLE}POLL_S", "0.1")
        yield one


def begun(harness: Begin, tmp_path: Path, tokens: int) -> WorkerHarness:
    """Begins a run of two groups at a time; leases outlive the test, and partials are stored once an hour."""
    endless = save_model(tmp_path / "endless", seed=0, stop=False)
    run = harness(
        endless,
        model={"base": str(endless), "max_prompt_tokens": 64, "max_new_tokens": tokens},
        rollout={"concurrent_groups": 2, "progress_s": 3600.0},
        queue={"lease_s": 600.0},
    )
    run.begin(QUESTIONS, tensors_of(endless), wanted="3")
    return run


def test_on_a_notice_a_worker_stores_hands_back_deregisters_and_exits_with_0(
    harness: Begin, tmp_path: Path, server: Ec2
) -> None:
    run = begun(harness, tmp_path, tokens=4_000)
    worker = run.process("w1")
    run.until(lambda: generating(run), "tokens")
    server.interrupts("terminate", in_s=120)
    assert worker.wait(timeout=DEADLINE_S) == 0
    assert run.queue.reclaim().released == 2
    assert run.status().workers == ()
    lease = Clients.connected_as(run.config, "worker", run.store).lease("w2", Version(0, 0), 2)
    assert {task.id for task in lease.tasks} == set(lease.partials)
    assert all(len(sample.tokens) > 0 for partials in lease.partials.values() for sample in partials.samples)
    assert run.queue.audit().ok


def test_after_a_recommendation_a_worker_finishes_what_it_has_and_leaves(
    harness: Begin, tmp_path: Path, server: Ec2
) -> None:
    run = begun(harness, tmp_path, tokens=800)
    worker = run.process("w1")
    run.until(lambda: generating(run), "tokens")
    server.rebalance = b'{"noticeTime": "2026-01-05T08:22:00Z"}'
    assert worker.wait(timeout=DEADLINE_S) == 0
    assert len(run.drain(2)) == 2
    assert run.queue.reclaim().released == 0, "it held nothing"
    assert run.status().workers == ()
