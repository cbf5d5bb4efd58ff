"""Every block of docs/operations.md answers, with redis-cli, the read-only user and nothing else."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.queue import Heartbeat, Peer
from echo_queue.queue.acl import rules
from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
SETUP, *BLOCKS = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
RUN = "night"
PASSWORD = "look-only"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run in trouble: something trained, something stuck, something dead, two workers, one of them silent."""
    if shutil.which("redis-cli") is None:
        pytest.skip("no redis-cli on the path: `apt-get install redis-server`")
    directory = tmp_path_factory.mktemp("run")
    users = [User("admin", "all", rules("admin", RUN, "")), User("monitor", PASSWORD, rules("monitor", RUN, ""))]
    server = RedisServer(directory / "services" / "redis", users=users)
    server.start()
    (directory / "services" / "monitor.password").write_text(PASSWORD)
    with server.client() as client:
        queue = Clients(client, RUN, deadline_s=10.0)
        queue.install()
        harness = QueueHarness(queue, replace(RULES, mixture="a:6 b:3"))
        harness.round()
        first, second, *_ = harness.lease(4, worker="worker-2")
        queue.fail("worker-2", first.id, "Traceback: the scorer broke")
        queue.bury(second.id, "Traceback: no such column 'answer'")
        told = Heartbeat("transformers", Version(0, 1), "generating", 5_000.0, 3.0, 12, 1, 34.5, 1_200, 3_400)
        queue.heartbeat("worker-1", told, every_s=60.0)
        for worker in ("worker-1", "worker-2"):
            queue.join(Peer(worker, "default", "10.0.0.7:4711"), "0000.00000001/from-0000.00000000")
        queue.report("worker-2", "worker-1", "bad")
    yield directory
    server.stop()


def ask(directory: Path, block: str) -> str:
    """Returns what the block prints. It may use nothing but what the document's first block sets."""
    setup = SETUP.replace("run=quickstart dir=runs/quickstart", f"run={RUN} dir={directory}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", setup + block], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\b(NOPERM|WRONGPASS|NOAUTH|ERR|WRONGTYPE)\b", done.stdout + done.stderr), (
        done.stdout + done.stderr
    )
    return done.stdout


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{number}-{block.split()[0]}" for number, block in enumerate(BLOCKS)])
def test_every_block_of_the_runbook_answers(directory: Path, block: str) -> None:
    ask(directory, block)


def answer(directory: Path, heading: str) -> str:
    section = DOCUMENT.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return "".join(ask(directory, block) for block in re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL))


@pytest.mark.parametrize(
    ("question", "facts"),
    [
        ("How deep is each queue?", ["submitted\t40", "trained\t2", "dead 1", "retry ", "verdict\tOK"]),
        ("Does the mixture keep to its weights?", ["a\t", "a:6 b:3"]),
        ("Is the identity kept?", ["difference\t0", "lost\t0", "verdict\tOK"]),
        ("What is the current version?", ["0\t1\t", "number\t1", "manifest\tweights/0.1"]),
        ("Which workers live, and what do they do?", ["── worker-1: ", "state=generating", "worker-2"]),
        (
            "Who feeds whom with weights, and how long do they take?",
            [
                "worker-1: 0.1 generating 1200 3400 ",
                " 34.5",
                "chain of 0000.00000001/from-0000.00000000: worker-1 worker-2",
                "worker-2\tworker-1",
                "10.0.0.7:4711",
                "bad worker-2",
            ],
        ),
        ("What is stuck?", ["the scorer broke", "worker-2"]),
        ("What died, and why?", ["no such column 'answer'"]),
        ("How do I go back?", ["checkpoint-1"]),
        ("What happened?", ["completed", "trained\t2"]),
        ("Is the server well?", ["aof_enabled:1", "aof_last_write_status:ok", "used_memory_human"]),
    ],
)
def test_the_runbook_answers_what_one_asks_at_night(directory: Path, question: str, facts: list[str]) -> None:
    found = answer(directory, question)
    for fact in facts:
        assert fact in found


def test_each_worker_has_a_line_of_its_own_and_the_oldest_task_is_what_one_asks_for(directory: Path) -> None:
    """Redis names other fields of a consumer in 7.2 than in 7.0, and a stream's entry has an id before its pairs."""
    workers = [line.split() for line in answer(directory, "Which workers live, and what do they do?").splitlines()]
    held = [line for line in workers if line and line[0].startswith("name=")]
    assert [line[0] for line in held] == ["name=w1", "name=worker-2"]
    assert all([pair.partition("=")[0] for pair in line][:3] == ["name", "pending", "idle"] for line in held)
    stuck = answer(directory, "What is stuck?").splitlines()
    pairs = [line.split("\t") for line in stuck if line.startswith(("id\t", "attempt\t"))]
    assert [key for key, _ in pairs] == ["id", "attempt"]
    assert pairs[0][1].count("/") == 2 and pairs[1][1].isdecimal()


def test_consumers_of_a_newer_redis_are_as_well_aligned(tmp_path: Path) -> None:
    (block,) = (one for one in BLOCKS if "XINFO CONSUMERS" in one)
    fields = ("name", "pending", "idle", "inactive")
    said = "".join(f"{field}\n{worker}{place}\n" for worker in (1, 2) for place, field in enumerate(fields))
    (tmp_path / "said").write_text(said, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", f"rc() {{ cat {tmp_path}/said; }}\n{block}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    expected = [" ".join(f"{field}={one}{place}" for place, field in enumerate(fields)) for one in (1, 2)]
    assert done.stdout.splitlines() == expected


def test_the_read_only_user_can_change_nothing(directory: Path) -> None:
    for command in (
        "DEL ${K}stats",
        "XTRIM ${K}tasks MAXLEN 0",
        'FCALL eq1_finish 1 "$K"',
        "FLUSHALL",
        "CONFIG GET dir",
    ):
        with pytest.raises(AssertionError, match=r"NOPERM|Can not execute"):
            ask(directory, f"rc -e {command}")
