"""The benchmark of what one Redis holds: its simulated workers send what real ones send, and its parts run in small."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from benchmarks.scale import __main__ as scale
from benchmarks.scale import server as measured
from benchmarks.scale.crowd import Crowd
from benchmarks.scale.load import Child, Load
from tests.waiting import wait_until

DEADLINE_S = 60.0
TASKS = 6
MOVES = ("_lease", "_renew", "_heartbeat", "_join")


def commands_of(fleet: str) -> set[str]:
    """Returns the commands that a waiting worker sends until its tasks are done and new weights came."""
    seen: set[str] = set()
    completed: list[str] = []
    with measured.serving() as server, server.client() as client, server.client() as watching, ExitStack() as ends:
        load = Load(server.port, workers=1, rate=1, batch=2, groups=2, generation_s=1.5, beats=True, joins=True)
        crowd = Crowd(client, TASKS, load.batch, load.staleness)
        own = client.client_info()["addr"]
        threading.Thread(target=listen, args=(watching, own, seen), daemon=True).start()
        read_end, write_end = os.pipe()
        ends.callback(os.close, write_end)
        threading.Thread(target=read, args=(read_end, completed), daemon=True).start()
        ends.enter_context(Child(fleet, load, write_end))
        wait_until(lambda: len(completed) == TASKS, "all tasks to be generated", DEADLINE_S)
        crowd.publish(1)

        def serves_it() -> bool:
            beats = [worker.heartbeat for worker in crowd.monitor.status().workers]
            return any(beat and beat.version.number == 1 for beat in beats)

        wait_until(serves_it, "new weights", DEADLINE_S)
        wait_until(lambda: all(any(move in line for line in seen.copy()) for move in MOVES), "every move", DEADLINE_S)
    return seen


def read(descriptor: int, completed: list[str]) -> None:
    """Notes the tasks whose groups are whole."""
    with os.fdopen(descriptor, "rb") as lines:
        completed.extend(orjson.loads(line)["task"][0] for line in lines)


def listen(watching: redis.Redis, own: str, seen: set[str]) -> None:
    """Notes each command of other clients, with what differs from one to the next left out."""
    try:
        with watching.monitor() as monitor:
            for line in monitor.listen():
                if line["client_type"] != "lua" and f"{line['client_address']}:{line['client_port']}" != own:
                    seen.add(shape_of(line["command"]))
    except redis.RedisError:
        return


def shape_of(command: str) -> str:
    """Returns a command without tokens, numbers and ids of tasks. Several tasks read like one."""
    command = re.sub(r"\b[0-9a-f]{32}\b", "TOKEN", command)
    command = re.sub(r"set/\d+/\d+ \d+( set/\d+/\d+ \d+)*", "TASKS", command)
    return re.sub(r"\d+(\.\d+)?", "N", command)


def work_of(seen: set[str]) -> set[str]:
    """Leaves out how connections greet, and tokens per second and the like, which a heartbeat may or may not have."""
    greetings = ("CLIENT", "HELLO", "PING", "MONITOR", "CONFIG", "INFO")
    return {line.partition(" engine ")[0] for line in seen if not line.startswith(greetings)}


@pytest.mark.slow
def test_simulated_workers_send_exactly_the_commands_of_real_threads_and_connections() -> None:
    real = work_of(commands_of("tests.benchmarks.threaded_fleet"))
    simulated = work_of(commands_of("benchmarks.scale.fleet"))
    assert simulated == real
    assert any("BLOCK" in line or line.startswith("BLPOP") for line in real), "they wait without polling"


# What is promised -----------------------------------------------------------------------------------------------------

POINT = {"server_share": 0.2, "got": 100.0, "complete_p99_ms": 9.0}
KEPT: Mapping[str, Any] = {
    "sweep": {"2000 × 100": POINT},
    "commands": {"100000 in flight": {"lease 8": {"longest_ms": 0.4}}},
    "strict": {"1024": {"server_s": 0.3}},
}


def test_promises_that_are_kept_are_said_to_be() -> None:
    assert list(scale.targets_of(KEPT).values()) == [True] * 4


FAILING = """
import os, sys, time
rate = sys.argv[sys.argv.index("--rate") + 1]
ends = {"50": ('{"got": 50}', 0), "100": ("no JSON", 0), "200": ('{"got": 200}', 3), "400": ("", 1)}
missed = {"600": ('{"targets": {"fast": false}, "ok": false}', 1), "700": ('{"targets": {}, "ok": true}', 1)}
said, code = (ends | missed).get(rate, ("", None))
print(said, flush=True)
print("the end of the log", file=sys.stderr, flush=True)
while code is None:
    time.sleep(60)
os._exit(code)
"""
"""What a process of a measurement imports first: by its rate it measures, prints something else, dies, or hangs."""


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes this checkout one whose processes end as their rate says."""
    checkout = tmp_path / "failing"
    for package in scale.PACKAGES:
        (checkout / package).mkdir(parents=True)
        (checkout / package / "__init__.py").write_text(FAILING)
    (checkout / "benchmarks").symlink_to(scale.HERE / "benchmarks")
    monkeypatch.setattr(scale, "HERE", checkout)
    return checkout


def test_a_sweep_keeps_its_points_beside_those_whose_process_fails(
    failing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--json", "--only", "sweep", "--workers", "8", "--rates", "100,200,400,50"]
    monkeypatch.setattr(sys, "argv", ["scale", *words])
    assert scale.main() == 1
    lines = capsys.readouterr().out.splitlines()
    verdict = orjson.loads(lines[-1])
    assert 'this: sweep 8 × 50: {"got":50}' in lines
    assert verdict["figures"]["this"] == {"sweep": {"8 × 50": {"got": 50}}}
    lost = ["sweep 8 × 100", "sweep 8 × 200", "sweep 8 × 400", "whole_workers 8 × 100"]
    assert verdict["targets"] == {f"this: {point} is measured": False for point in lost}
    assert not verdict["ok"]


def test_a_process_that_misses_its_own_promise_has_measured(failing: Path, tmp_path: Path) -> None:
    checkout = scale.Checkout(failing, tmp_path / "this")
    assert checkout.measure("scale.herd", "--rate", 600) == {"targets": {"fast": False}, "ok": False}
    with pytest.raises(scale.MeasurementFailed, match="ended with 1"):
        checkout.measure("scale.herd", "--rate", 700)


def test_a_process_that_hangs_is_ended_and_its_point_lost(failing: Path, tmp_path: Path) -> None:
    checkout = scale.Checkout(failing, tmp_path / "this", deadline_s=0.1)
    with pytest.raises(scale.MeasurementFailed, match=r"not done after 0\.1 s"):
        checkout.measure("scale.herd", "--rate", 800)


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, {"sweep": {"2000 × 100": POINT | {"server_share": 0.4}}}),
        (0, {"sweep": {"2000 × 100": POINT | {"got": 60.0}}}),
        (1, {"sweep": {"2000 × 100": POINT | {"complete_p99_ms": 16.0}}}),
        (2, {"commands": {"100000 in flight": {"lease 8": {"longest_ms": 11.0}}}}),
        (3, {"strict": {"1024": {"server_s": 0.5}}}),
    ],
)
def test_a_promise_that_is_missed_is_said_to_be(number: int, change: Mapping[str, Any]) -> None:
    assert list(scale.targets_of({**KEPT, **change}).values()) == [place != number for place in range(4)]


HERD = ("--workers", "3", "--rate", "8", "--seconds", "3", "--update", "1", "--generation", "0.3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "words", "thing"),
    [
        pytest.param("herd", HERD, "got", marks=pytest.mark.proof(kind="benchmarks", share=0.15)),
        ("commands", ("--tasks", "600", "--workers", "30"), "advance that cancels all"),
        ("strict", ("--batch", "16", "--updates", "1"), "server_s"),
        pytest.param(
            "memory",
            ("--things", "2000"),
            "trained prompt",
            marks=pytest.mark.proof(kind="benchmarks", share=0.15),
        ),
    ],
)
def test_each_part_runs_in_small(part: str, words: Sequence[str], thing: str) -> None:
    line = (sys.executable, "-m", f"benchmarks.scale.{part}", *words)
    done = subprocess.run(line, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    figures = orjson.loads(done.stdout.splitlines()[-1])
    assert thing in figures
