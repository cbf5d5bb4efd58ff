"""Machines as Terraform's plan describes them, which share a secret store and a metadata server."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.infra.machine import Machine
from tests.infra.rendered import Rendered, render
from tests.servers.ports import free_port
from tests.workers.preemption.servers import Ec2, serving

Make = Callable[[str], Machine]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    return render(tmp_path_factory.mktemp("plan"), redis_host="127.0.0.1")


@pytest.fixture(scope="module")
def metadata() -> Iterator[Ec2]:
    with serving(Ec2()) as server:
        yield server


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The secret store of all machines, a folder; beside the secrets lies the groups file, which S3 would hold."""
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def make_machine(rendered: Rendered, metadata: Ec2, secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes machines that have not booted yet. Redis listens on a free port."""
    port = str(free_port())
    (secrets / "groups").write_text(rendered.groups_file)

    def make(name: str) -> Machine:
        files = {path: (text.replace("6380", port), mode) for path, (text, mode) in rendered.files[name].items()}
        machine = Machine(tmp_path_factory.mktemp("machine"), files, metadata.url, secrets)
        machine.append("etc/echo-queue/host.env", f"METADATA={metadata.url}")
        return machine

    return make


@pytest.fixture(scope="module")
def redis_machine(make_machine: Make) -> Iterator[Machine]:
    """The machine of Redis, booted once for all tests of a module; Redis runs on it."""
    machine = booted(make_machine("redis"))
    machine.begin("redis")
    yield machine
    machine.end()


def booted(machine: Machine) -> Machine:
    done = machine.step("boot")
    assert done.returncode == 0, done.stderr
    return machine


def secret(secrets: Path, role: str) -> tuple[str, str]:
    """A role's password, and the authority of the server's certificate."""
    password, _, authority = (secrets / f"echo-queue_demo_{role}").read_text().partition("\n")
    return password, authority


def redis_port(machine: Machine) -> int:
    (port,) = re.findall(r"^tls-port (\d+)$", (machine.root / "etc/echo-queue/redis.conf").read_text(), re.MULTILINE)
    return int(port)


def connected(machine: Machine, secrets: Path, role: str) -> "redis.Redis":
    """Connects as containers of other machines do: over TLS, with what the secret store tells them."""
    password, authority = secret(secrets, role)
    return redis.Redis(
        "127.0.0.1", redis_port(machine), username=role, password=password, ssl=True, ssl_ca_data=authority
    )


def answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError as error:
        assert "CERTIFICATE" not in str(error), error
        return False
