"""The machines of a run boot: Terraform's files, the host's script and real servers, without a cloud or containers."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.infra.conftest import Make, answers, booted, connected, secret
from tests.infra.machine import Machine
from tests.infra.rendered import DIGEST, ROLES, Rendered
from tests.waiting import wait_until
from tests.workers.preemption.servers import Ec2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("terraform") is None or shutil.which("openssl") is None,
        reason="terraform and openssl are needed to render and boot a machine: put them on the path",
    ),
]


def test_the_redis_machine_makes_users_and_serves_them_over_tls_alone(redis_machine: Machine, secrets: Path) -> None:
    assert len({secret(secrets, role)[0] for role in ROLES}) == len(ROLES)
    with connected(redis_machine, secrets, "admin") as client:
        wait_until(lambda: answers(client), "Redis")
        settings = client.config_get("*")
    wanted = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "port": "0"}
    assert wanted.items() <= settings.items()
    with connected(redis_machine, secrets, "worker") as worker, pytest.raises(redis.exceptions.NoPermissionError):
        worker.config_get("*")


@pytest.mark.usefixtures("redis_machine")
def test_a_worker_machine_gets_its_own_secret_and_short_lived_credentials(make_machine: Make, secrets: Path) -> None:
    machine = booted(make_machine("pool/cpu"))
    run = machine.root / "run/echo-queue"
    assert [path.name for path in (run / "secrets").iterdir()] == ["worker"]
    assert (run / "secrets/worker").read_text().strip() == secret(secrets, "worker")[0]
    assert (run / "secrets/worker").stat().st_mode & 0o777 == 0o600
    assert (run / "shared/ca.pem").read_text().strip() == secret(secrets, "worker")[1].strip()
    assert '"SessionToken"' in (run / "shared/credentials.json").read_text()
    said = machine.log.read_text()
    assert f"@{DIGEST}" in said and secret(secrets, "worker")[0] not in said


@pytest.mark.proof(kind="machines", share=0.25)
def test_a_second_boot_changes_no_password_and_a_lost_volume_only_the_authority(
    redis_machine: Machine, secrets: Path
) -> None:
    before = {role: secret(secrets, role) for role in ROLES}
    booted(redis_machine)
    assert {role: secret(secrets, role) for role in ROLES} == before
    shutil.rmtree(redis_machine.root / "var/lib/echo-queue/tls")
    booted(redis_machine)
    for role, (password, authority) in before.items():
        assert secret(secrets, role)[0] == password and secret(secrets, role)[1] != authority


@pytest.mark.proof(kind="machines", share=0.25)
def test_a_refusal_of_the_secret_store_makes_no_new_password(redis_machine: Machine, secrets: Path) -> None:
    before = secret(secrets, "worker")
    with (
        changed(redis_machine.aws, "elif file.exists():", "elif False:"),
        changed(redis_machine.aws, "ResourceNotFound", "Throttling"),
        changed(redis_machine.host, "within 300", "within 0"),
    ):
        assert redis_machine.step("boot").returncode == 1
    assert secret(secrets, "worker") == before


def test_a_machine_without_its_secret_says_what_it_waits_for(rendered: Rendered, metadata: Ec2, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    machine = Machine(tmp_path, rendered.files["pool/cpu"], metadata.url, tmp_path / "none")
    with changed(machine.host, "within 900", "within 0"):
        done = machine.step("boot")
    assert done.returncode == 1
    assert "waited 0 s for the secret of worker, which the Redis machine makes at its first boot" in done.stderr
    early = machine.step("worker", "0")
    assert early.returncode == 1 and "this machine has not booted yet" in early.stderr
    unknown = machine.step("rm", "-rf")
    assert unknown.returncode == 1 and "there is no step rm" in unknown.stderr


LEFT = (
    "aws autoscaling terminate-instance-in-auto-scaling-group --region us-east-1 --should-decrement-desired-capacity "
    "--instance-id i-0123456789abcdef0"
)


def worker_began(machine: Machine, number: int, ago_s: int) -> None:
    """Puts the beginning of a worker's life into the past, as the step `worker` notes it."""
    (machine.root / f"run/echo-queue/began-{number}").write_text(str(int(time.time()) - ago_s))


def left(machine: Machine) -> int:
    return machine.log.read_text().count(LEFT) if machine.log.exists() else 0


@pytest.mark.usefixtures("redis_machine")
def test_a_machine_leaves_its_group_once_all_its_workers_have_waited_in_vain_for_a_learner(
    make_machine: Make,
) -> None:
    machine = booted(make_machine("pool/cpu"))
    machine.append("etc/echo-queue/host.env", "GPUS='2'")
    for number in (0, 1):
        worker_began(machine, number, 1000)
    assert machine.step("worker_ended", "0", EXIT_STATUS="4").returncode == 0
    assert left(machine) == 0, "the other one may still work"
    done = machine.step("worker_ended", "1", EXIT_STATUS="4")
    assert (done.returncode, left(machine)) == (0, 1)
    assert "its workers have waited in vain for a learner" in done.stderr and "eq-demo-cpu" in done.stderr


@pytest.mark.usefixtures("redis_machine")
def test_a_machine_whose_worker_fails_for_an_hour_on_end_leaves_its_group(make_machine: Make) -> None:
    machine = booted(make_machine("pool/cpu"))
    failing = machine.root / "run/echo-queue/failing-0"
    for ago_s in (10, 1700):
        worker_began(machine, 0, ago_s)
        machine.step("worker_ended", "0", EXIT_STATUS="2")
    failing.write_text(str(int(time.time()) - 3500))
    machine.step("worker_ended", "0", EXIT_STATUS="2")
    assert left(machine) == 0, "it is no hour yet"
    failing.write_text(str(int(time.time()) - 3700))
    worker_began(machine, 0, 90_000)
    machine.step("worker_ended", "0", EXIT_STATUS="2")
    assert left(machine) == 0, "it has worked for a day, and failed only now"
    worker_began(machine, 0, 300)
    failing.write_text(str(int(time.time()) - 3700))
    machine.step("worker_ended", "0", EXIT_STATUS="0")
    machine.step("worker_ended", "0", EXIT_STATUS="2")
    assert left(machine) == 0, "it has ended well in between"
    failing.write_text(str(int(time.time()) - 3700))
    machine.step("worker_ended", "0", EXIT_STATUS="2")
    assert left(machine) == 1


def test_a_machine_that_cannot_boot_for_an_hour_leaves_its_group(
    rendered: Rendered, metadata: Ec2, tmp_path: Path
) -> None:
    (tmp_path / "none").mkdir()
    machine = Machine(tmp_path, rendered.files["pool/cpu"], metadata.url, tmp_path / "none")
    with changed(machine.host, "within 900", "within 0"):
        machine.step("boot")
        assert left(machine) == 0
        (machine.root / "run/echo-queue/failing-boot").write_text(str(int(time.time()) - 3700))
        machine.step("boot")
    assert left(machine) == 1


@contextmanager
def changed(script: Path, old: str, new: str) -> Iterator[None]:
    """Puts other words into a script for a while."""
    before = script.read_text()
    assert old in before
    script.write_text(before.replace(old, new))
    yield
    script.write_text(before)
