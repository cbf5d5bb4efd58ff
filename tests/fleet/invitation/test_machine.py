"""The lacks of a machine are judged from what its driver, its disk, its clock and its network say."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.cli.run.placement import placements
from echo_queue.config import Config
from echo_queue.fleet.invitation import machine
from echo_queue.fleet.invitation.machine import Gpu, gpus_of

LISTING = "0, NVIDIA L4, 23034, 535.183.01\n1, NVIDIA L4, 23034, 535.183.01\n"
GB = 10**9


def said(problems: "Iterator[machine.Problem]") -> list[str]:
    return [f"{problem.where}: {problem.what}" for problem in problems]


def test_the_lines_of_nvidia_smi_are_read() -> None:
    assert gpus_of(LISTING)[1] == Gpu("1", "NVIDIA L4", 23034 << 20, "535.183.01")
    assert gpus_of("No devices were found\n") == []
    assert machine.gpus(("nowhere-to-be-found",)) == machine.gpus(("false",)) == []


@pytest.mark.parametrize(
    ("engine", "found", "cuda", "size", "words"),
    [
        ("vllm", "", 12, 0, "nvidia-smi shows none"),
        ("vllm", LISTING, 12, 40 * GB, "has 24 GB, and the model takes 40 GB"),
        ("transformers", LISTING, 13, 0, "has driver 535.183.01, and torch was built for CUDA 13, which needs 580"),
        ("vllm", LISTING, 12, 8 * GB, ""),
        ("transformers", "", 12, 40 * GB, ""),
        ("vllm", "", 0, 0, ""),
        ("http", "", 12, 0, ""),
    ],
)
def test_an_engine_names_the_gpu_that_it_lacks(engine: str, found: str, cuda: int, size: int, words: str) -> None:
    problems = said(machine.gpu_problems(engine, gpus_of(found), cuda, size, 0.9))
    assert words in "\n".join(problems)
    assert bool(problems) == bool(words)


@pytest.mark.parametrize(
    ("engine", "cuda", "environ", "devices"),
    [
        ("vllm", 12, {}, ["0", "1"]),
        ("vllm", 12, {"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
        ("vllm", 12, {"CUDA_VISIBLE_DEVICES": "GPU-3c, MIG-1a"}, ["GPU-3c", "MIG-1a"]),
        ("vllm", 12, {"CUDA_VISIBLE_DEVICES": ""}, []),
        ("vllm", 12, {"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ("http", 12, {}, []),
        ("transformers", 0, {}, []),
    ],
)
def test_each_gpu_that_is_for_workers_has_one(
    engine: str, cuda: int, environ: dict[str, str], devices: list[str]
) -> None:
    found = gpus_of(LISTING)
    assert machine.devices(engine, found, cuda, environ) == devices
    judged = [gpu.index for gpu in machine.named(found, devices)]
    assert judged == (devices if all(map(str.isdecimal, devices)) else ["0", "1"])
    assert bool(said(machine.worker_problems(3, devices))) == bool(devices)
    placed = placements([f"gpu-{number}" for number in range(max(1, len(devices)))], devices, 29600)
    assert [place.device for place in placed] == (devices or [""])
    assert [place.port for place in placed] == [29600, 29601][: len(placed)]
    last = placed[-1]
    expected = [f"CUDA_VISIBLE_DEVICES={last.device}"] if devices else []
    assert list(last.variables()) == [*expected, f"ECHO_QUEUE_WEIGHTS__PEER_PORT={last.port}"]


def test_what_a_gpu_lacks_is_said_of_each() -> None:
    problems = machine.gpu_problems("vllm", gpus_of(LISTING), 12, 40 * GB, 0.9)
    assert [line.partition(":")[0] for line in said(problems)] == ["GPU 0", "GPU 1"]


def test_a_model_must_fit_the_share_of_a_gpu_that_a_worker_takes() -> None:
    for share, fits in ((0.9, True), (0.3, False)):
        assert (not said(machine.gpu_problems("vllm", gpus_of(LISTING), 12, 8 * GB, share))) is fits


def test_a_full_disk_and_a_clock_that_is_wrong_are_named(tmp_path: Path) -> None:
    assert said(machine.disk_problems(tmp_path, 0, 8)) == []
    assert "for each worker take 3000000.0 GB" in said(machine.disk_problems(tmp_path, 10**15, 2))[0]
    assert said(machine.clock_problems(1_000_000, 1_029_000)) == []
    assert said(machine.clock_problems(1_095_000, 1_000_000)) == ["clock: is 95 s ahead of Redis' clock"]
    assert said(machine.clock_problems(0, 31_000)) == ["clock: is 31 s behind Redis' clock"]


@pytest.mark.parametrize(
    ("own", "seen", "behind"),
    [
        ("192.168.1.5", "203.0.113.9", True),
        ("203.0.113.9", "203.0.113.9", False),
        ("::1", "127.0.0.1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", False),
        ("", "203.0.113.9", False),
    ],
)
def test_a_machine_is_behind_a_nat_if_redis_sees_another_address(own: str, seen: str, behind: bool) -> None:
    assert machine.is_behind_nat(own, seen) == behind


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_ways_that_are_closed_are_named(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    settings = {"run": {"name": "r", "dir": "r"}, "weights": {"peer_port": port}}
    assert f"{port} cannot be used here" in said(machine.peer_port_problems(Config.model_validate(settings), 1))[0]
    assert said(machine.store_problems(f"http://127.0.0.1:{port}")) == []
    assert "cannot be reached from here" in said(machine.store_problems("http://127.0.0.1:1"))[0]
    assert machine.host_towards(f"rediss://127.0.0.1:{port}/0") == "127.0.0.1"
    assert machine.host_towards("redis+sentinel://127.0.0.1:26379,10.0.0.1:26379/mine/0") == "127.0.0.1"


def test_one_worker_that_greets_is_enough(listener: socket.socket) -> None:
    def greet() -> None:
        with listener.accept()[0] as peer:
            peer.sendall(b"EQ1 100 mark\r\n\r\n")

    assert said(machine.peer_warnings([])) == []
    assert "none of the run's workers" in said(machine.peer_warnings(["127.0.0.1:1", "nonsense"]))[0]
    greeter = threading.Thread(target=greet, daemon=True)
    greeter.start()
    assert said(machine.peer_warnings(["127.0.0.1:1", f"127.0.0.1:{listener.getsockname()[1]}"])) == []
    greeter.join(120)
