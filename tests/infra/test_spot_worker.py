"""A worker's machine from boot to a lease, and to its end by a spot notice that only its host hears."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.records import Version
from tests.infra.conftest import Make, answers, booted, connected, redis_port, secret
from tests.infra.machine import Machine
from tests.infra.rendered import ROLES
from tests.queue.clients import Clients
from tests.servers.s3 import BUCKET, KEYS
from tests.waiting import wait_until
from tests.workers.preemption.servers import Ec2
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, generating, tensors_of

QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(8)]
DEADLINE_S = 120.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.proof(kind="machines", share=0.25),
    pytest.mark.skipif(
        shutil.which("terraform") is None or shutil.which("openssl") is None,
        reason="terraform and openssl are needed to render and boot a machine: put them on the path",
    ),
]


@pytest.fixture
def run(
    redis_machine: Machine, secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerHarness]:
    """A new run on the Redis machine and a bucket, with a learner that trains nothing. Samples have 1,500 tokens."""
    with connected(redis_machine, secrets, "admin") as admin:
        wait_until(lambda: answers(admin), "Redis")
        admin.flushall()
    for role in ROLES:
        monkeypatch.setenv(f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD", secret(secrets, role)[0])
    monkeypatch.setenv("ECHO_QUEUE_STORE_ACCESS_KEY", KEYS.access_key)
    monkeypatch.setenv("ECHO_QUEUE_STORE_SECRET_KEY", KEYS.secret_key)
    (tmp_path / "ca.pem").write_text(secret(secrets, "worker")[1])
    store = S3Server(tmp_path / "s3", KEYS)
    store.start()
    ObjectStore(store.endpoint(BUCKET), "setup", 20.0).create_bucket()
    endless = save_model(tmp_path / "endless", seed=0, stop=False)
    url = f"rediss://127.0.0.1:{redis_port(redis_machine)}/0"
    run = WorkerHarness(
        tmp_path,
        endless,
        run={"name": "demo"},
        redis={"url": url, "username": "{role}", "ca_file": str(tmp_path / "ca.pem")},
        store={"url": store.url, "bucket": BUCKET},
        model={"base": str(endless), "max_prompt_tokens": 64, "max_new_tokens": 1500},
        rollout={"concurrent_groups": 2, "progress_s": 3600.0},
        queue={"lease_s": 600.0},
    )
    run.begin(QUESTIONS, tensors_of(endless), wanted="3")
    yield run
    run.end()
    store.stop()


@pytest.fixture
def machine(run: WorkerHarness, make_machine: Make, metadata: Ec2) -> Iterator[Machine]:
    """A worker's machine whose role may use the bucket, with the run's configuration."""
    metadata.action = metadata.rebalance = None
    role = {"AccessKeyId": KEYS.access_key, "SecretAccessKey": KEYS.secret_key, "Token": "token"}
    metadata.credentials = orjson.dumps({**role, "Expiration": "2100-01-01T00:00:00Z"})
    machine = make_machine("pool/cpu")
    (machine.root / "etc/echo-queue/run.toml").write_text(run.path.read_text())
    machine.append("etc/echo-queue/run.env", f"ECHO_QUEUE_STORE__URL={run.config.store.url}")
    machine.append("etc/echo-queue/run.env", f"ECHO_QUEUE_STORE__BUCKET={BUCKET}")
    yield booted(machine)
    machine.end()


def test_a_worker_leases_and_on_a_notice_hands_back_and_ends(
    run: WorkerHarness, machine: Machine, metadata: Ec2
) -> None:
    machine.begin("watch_notices")
    worker = machine.begin("worker", "0")
    wait_until(lambda: generating(run), "tokens", DEADLINE_S)
    (status,) = run.status().workers
    assert status.name == "cpu-i-0123456789abcdef0-0" and status.held == 2
    metadata.interrupts("terminate", in_s=120)
    assert worker.wait(timeout=DEADLINE_S) == 0
    assert run.queue.reclaim().released == 2
    assert run.status().workers == () and run.queue.audit().ok
    lease = Clients.connected_as(run.config, "worker", run.store).lease("w2", Version(0, 0), 2)
    assert {task.id for task in lease.tasks} == set(lease.partials), "the next worker continues them"


def test_after_a_recommendation_a_worker_rests_finishes_what_it_has_and_ends(
    run: WorkerHarness, machine: Machine, metadata: Ec2
) -> None:
    machine.begin("watch_notices")
    worker = machine.begin("worker", "0")
    wait_until(lambda: generating(run), "tokens", DEADLINE_S)
    metadata.rebalance = b'{"noticeTime": "2026-01-05T08:22:00Z"}'
    assert worker.wait(timeout=DEADLINE_S) == 0
    assert len(run.drain(2)) == 2
    assert run.queue.reclaim().released == 0, "it held nothing"
