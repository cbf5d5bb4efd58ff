"""Fail-over to a replica that lagged: with `redis.wait_replicas` nothing acknowledged is missing, without it the run
notices what Redis forgot and still trains every prompt once.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from echo_queue.config import Config
from echo_queue.config.checks import contradictions
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError, SetBackError
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.queue import Chunk, Outcome, PromptSet, RunRules
from echo_queue.queue.caller import Replicas
from echo_queue.records import PromptShard, Version
from echo_queue.reporting import metrics
from learner.recovery import checkpoint
from learner.training_loop import train
from tests.faults.servers.replicated import Replicated
from tests.learner.learner_harness import SimulatedWorker, make_base
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of
from tests.servers.redis import KINDS
from tests.waiting import DEADLINE_S, wait_until

ONE = Replicas(1, wait_ms=100)
CHUNKS = Chunk(0, 0, 16), Chunk(1, 16, 12), Chunk(2, 28, 32)
"""Four updates before the link is cut, three that the replica does not see, eight after the fail-over."""
PROMPTS = 60
KEYS = StoreKeys("A" * 20, "b" * 40)


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicated]:
    """A master and a replica, of each kind in turn."""
    program = shutil.which("redis-server") if request.param == "redis" else None
    if request.param == "redis" and program is None:
        pytest.skip("no redis-server on the path")
    with Replicated(tmp_path, Path(program) if program else None) as pair:
        yield pair


def test_a_move_counts_only_once_enough_replicas_hold_it(pair: Replicated) -> None:
    harness = QueueHarness(Clients(pair.client(), "run", deadline_s=10.0, replicas=ONE), replace(RULES, s=9))
    (task, other) = harness.lease(2)
    groups = [group_of(task, "w1", harness.version)]
    pair.stall()
    hasty = Clients(pair.client(), "run", deadline_s=1.0, replicas=ONE)
    with pytest.raises(ServiceError, match=r"0 of 1 replicas hold it\n.*redis\.wait_replicas"):
        hasty.complete("w1", groups)
    # A connection that has written nothing itself: by itself Valkey's WAIT would count every replica for it.
    fresh = Clients(pair.client(), "run", deadline_s=1.0, replicas=ONE)
    with pytest.raises(ServiceError, match="0 of 1 replicas hold it"):
        fresh.complete("w1", groups)
    assert fresh.audit().ok, "reading waits for nobody"
    pair.link.release()
    assert harness.queue.complete("w1", groups) == [Outcome.accepted]
    assert harness.complete((other,)) == [Outcome.accepted]
    with pair.replica.client() as client:
        assert client.xlen(harness.queue.keys.replay) == 2


def test_a_completion_of_many_groups_waits_once(pair: Replicated) -> None:
    harness = QueueHarness(Clients(pair.client(), "run", deadline_s=10.0, replicas=ONE), replace(RULES, s=9))
    waits: list[str] = []
    pair.front.choose = lambda request: waits.append(request.name) if request.name == "WAIT" else None  # type: ignore[func-returns-value]
    tasks = harness.lease(8)
    waits.clear()
    assert harness.complete(tasks) == [Outcome.accepted] * 8
    assert waits == ["WAIT"]


@pytest.mark.parametrize("waits", [True, False], ids=["with WAIT", "without"])
def test_what_a_fail_over_forgets(pair: Replicated, waits: bool) -> None:
    replicas = ONE if waits else Replicas()
    harness = QueueHarness(
        Clients(pair.client(), "run", deadline_s=DEADLINE_S, replicas=replicas), replace(RULES, s=1000), prompts=400
    )
    acknowledged: list[str] = []
    for number in range(6):
        if number == 4:
            pair.stall()
            harness.queue.caller.deadline_s = 1.0
        try:
            tasks = harness.queue.lease("w1", Version(0, 0), 5).tasks
            harness.queue.complete("w1", [group_of(task, "w1", Version(0, 0)) for task in tasks])
            acknowledged += [task.id for task in tasks]
        except ServiceError as error:
            assert waits and "replicas hold it" in str(error)
    pair.fail_over()
    survivor = Clients(pair.client(), "run", deadline_s=10.0)
    audit = survivor.audit()
    assert audit.ok, audit
    places = survivor.client.hmget(survivor.keys.open, acknowledged)
    kept = sum(place is not None and place.startswith(b"replay") for place in places)
    assert (kept, len(acknowledged)) == ((20, 20) if waits else (20, 30))
    assert survivor.lease("w2", Version(0, 0), 1000).tasks, "the survivor goes on"


def test_too_few_replicas_are_told_at_connect(pair: Replicated, tmp_path: Path) -> None:
    def config(count: int) -> Config:
        settings = {"url": f"redis://127.0.0.1:{pair.port}/0", "wait_replicas": count, "wait_ms": 50}
        return Config.model_validate({"run": {"name": "run", "dir": tmp_path}, "redis": settings})

    connect_redis(config(1), "worker", deadline_s=DEADLINE_S).close()
    with pytest.raises(ServiceError, match=r"redis\.wait_replicas: 1 of 2 replicas are attached"):
        connect_redis(config(2), "worker", deadline_s=0)
    connect_redis(config(2), "monitor", deadline_s=0).close()


def test_an_embedded_server_has_no_replicas_to_wait_for(tmp_path: Path) -> None:
    config = Config.model_validate({"run": {"name": "run", "dir": tmp_path}, "redis": {"wait_replicas": 1}})
    assert [problem.where for problem in contradictions(config)] == ["redis.wait_replicas"]


@pytest.fixture
def run_at(pair: Replicated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Config]]:
    """`run_at(wait_replicas=1)`: a run's configuration, with prompts declared and a store beside the pair."""
    torch.set_num_threads(1)
    monkeypatch.setenv("ECHO_QUEUE_STORE_ACCESS_KEY", KEYS.access_key)
    monkeypatch.setenv("ECHO_QUEUE_STORE_SECRET_KEY", KEYS.secret_key)
    s3 = S3Server(tmp_path / "s3", KEYS)
    s3.start()
    ObjectStore(s3.endpoint("replicated"), "run").create_bucket()
    make_base(tmp_path / "base")

    def make(**settings: Any) -> Config:
        values = {
            "run": {"name": "run", "dir": tmp_path / "run"},
            "redis": {"url": f"redis://127.0.0.1:{pair.port}/0", **settings},
            "store": {"url": s3.url, "bucket": "replicated"},
            "model": {"base": str(tmp_path / "base")},
            "rollout": {"group_size": 2},
            "staleness": {"s": 2},
            "learner": {"batch_groups": 4, "checkpoint_updates": 2, "lr": 1e-3},
            "queue": {"stall_deadline_s": DEADLINE_S, "lease_s": 3.0},
        }
        config = Config.model_validate(values)
        queue = Clients.connected_as(config, "submitter")
        queue.configure(RunRules.of(config))
        queue.declare(PromptSet("set", "made up"), CHUNKS)
        return config

    yield make
    s3.stop()


class LearnerThread(threading.Thread):
    """A learner that is started again when Redis has forgotten its moves, as a supervisor does; counts these."""

    def __init__(self, config: Config) -> None:
        super().__init__(daemon=True)
        self.set_back = 0
        self._config = config

    def run(self) -> None:
        while True:
            try:
                return train(self._config, threading.Event())
            except SetBackError:
                self.set_back += 1


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0, 1], ids=["without", "with WAIT"])
def test_a_run_goes_through_a_fail_over_and_trains_every_prompt_once(
    pair: Replicated, run_at: Callable[..., Config], wait: int
) -> None:
    config = run_at(wait_replicas=wait, wait_ms=100)
    workers = [SimulatedWorker(config, name, generation_s=0.02) for name in ("w1", "w2")]
    learner = LearnerThread(config)
    for thread in (*workers, learner):
        thread.start()

    def submit(chunk: Chunk) -> None:
        Clients.connected_as(config, "submitter").submit(
            "set", chunk.number, PromptShard("nowhere", chunk.first, chunk.count)
        )

    def version() -> int:
        return Clients(pair.client(), "run", deadline_s=20.0).status().learner.number

    first, unseen, last = CHUNKS
    submit(first)
    wait_until(lambda: version() == 4, "four updates")
    if wait:  # what is under way then is acknowledged to nobody
        submit(unseen)
    pair.stall()
    if not wait:
        submit(unseen)
        wait_until(lambda: version() == 7, "updates that the replica does not see")
    pair.fail_over()
    pair.attach()
    submit(unseen)
    submit(last)
    learner.join(DEADLINE_S)
    assert not learner.is_alive()
    for worker in workers:
        worker.close()

    assert learner.set_back == (0 if wait else 1)
    audit = Clients(pair.client(), "run", deadline_s=10.0).audit()
    assert audit.ok and audit.trained == PROMPTS, audit
    submission_status = checkpoint.trained_ids(connect_store(config))
    assert sorted(submission_status) == sorted(f"set/0/{index}" for index in range(PROMPTS))
    lines = metrics.read(config.run.dir / "metrics.jsonl")
    assert max(int(lag) for line in lines for lag in line.lags) <= config.staleness.s
