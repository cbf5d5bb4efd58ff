"""All machines of a run, from their first boot to a trained model, with the steps of their units as processes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from tests.infra.conftest import Make, booted
from tests.infra.machine import Machine
from tests.pipeline.supervised_run import TINY
from tests.servers.s3 import BUCKET, KEYS
from tests.workers.preemption.servers import Ec2

DEADLINE_S = 500.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.proof(kind="machines", share=0.25),
    pytest.mark.skipif(
        shutil.which("terraform") is None or shutil.which("openssl") is None,
        reason="terraform and openssl are needed to render and boot a machine: put them on the path",
    ),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(tmp_path / "s3", KEYS)
    server.start()
    ObjectStore(server.endpoint(BUCKET), "setup", 20.0).create_bucket()
    yield server
    server.stop()


@pytest.fixture
def booted_machines(
    redis_machine: Machine, make_machine: Make, metadata: Ec2, store: S3Server
) -> Iterator[tuple[Machine, Machine]]:
    """The learner's and a worker's machine, whose roles may use the bucket. Redis runs on a third one."""
    role = {"AccessKeyId": KEYS.access_key, "SecretAccessKey": KEYS.secret_key, "Token": "token"}
    metadata.credentials = orjson.dumps({**role, "Expiration": "2100-01-01T00:00:00Z"})
    made = make_machine("learner"), make_machine("pool/cpu")
    for machine in made:
        (machine.root / "etc/echo-queue/run.toml").write_text(TINY.read_text().replace('"tiny"', '"demo"'))
        machine.append("etc/echo-queue/run.env", "ECHO_QUEUE_QUEUE__STALL_DEADLINE_S=400")
        machine.append("etc/echo-queue/run.env", f"ECHO_QUEUE_STORE__URL={store.url}")
        machine.append("etc/echo-queue/run.env", f"ECHO_QUEUE_STORE__BUCKET={BUCKET}")
        booted(machine)
    yield made
    for machine in made:
        machine.end()


def test_the_machines_of_a_plan_train_a_model_and_then_end_their_pools(
    booted_machines: tuple[Machine, Machine],
) -> None:
    learner_machine, worker_machine = booted_machines
    learner_machine.begin("services")
    learner = learner_machine.begin("learner")
    learner_machine.begin("submission")
    submit = learner_machine.begin("submit")
    worker = worker_machine.begin("worker", "0")
    assert submit.wait(timeout=DEADLINE_S) == 0
    assert learner.wait(timeout=DEADLINE_S) == 0
    assert worker.wait(timeout=DEADLINE_S) == 0
    assert (learner_machine.root / "var/lib/echo-queue/run/model/config.json").exists()
    assert learner_machine.step("finish").returncode == 0
    said = learner_machine.log.read_text()
    assert "aws s3 cp --only-show-errors --recursive" in said and "s3://bucket/demo/model" in said
    for group in ("eq-demo-cpu", "eq-demo-l4"):
        assert f"--auto-scaling-group-name {group} --desired-capacity 0" in said
