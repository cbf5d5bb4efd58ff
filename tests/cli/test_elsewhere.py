"""What a run says is the same on every machine: on the learner's, and where there is nothing but the configuration."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from echo_queue import __version__
from echo_queue.cli.commands import app
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.endpoints import redis_endpoint, services_dir, store_endpoint
from echo_queue.connections.secrets import generated
from echo_queue.queue import Heartbeat, UpdateRecord
from echo_queue.records import Version
from tests.learner.learner_harness import LearnerHarness
from tests.queue.clients import Clients
from tests.waiting import DEADLINE_S, wait_until

PROMPTS = 16
TOML = """
[run]
name = "test"
dir = "{dir}"
[model]
base = "{base}"
[rollout]
group_size = 2
[staleness]
s = 2
[learner]
device = "cpu"
batch_groups = 4
checkpoint_updates = 3
lr = 1e-3
[queue]
stall_deadline_s = 300.0
lease_s = 3.0
"""
SERVERS = """
[redis]
url = "{redis}"
username = "{{role}}"
[store]
url = "{store}"
bucket = "{bucket}"
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LearnerHarness]:
    with LearnerHarness(tmp_path) as harness:
        yield harness


@pytest.fixture
def machines(harness: LearnerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The configuration in three places, each with a run.dir of its own. The first is the learner's; the others hold
    nothing else."""
    local = TOML.format(dir=tmp_path / "run", base=tmp_path / "base-model")
    config = harness.config()
    secrets = generated(services_dir(config))
    store = store_endpoint(config)
    monkeypatch.setenv("ECHO_QUEUE_MONITOR_REDIS_PASSWORD", secrets.redis["monitor"])
    monkeypatch.setenv("ECHO_QUEUE_MONITOR_STORE_ACCESS_KEY", secrets.store.access_key)
    monkeypatch.setenv("ECHO_QUEUE_MONITOR_STORE_SECRET_KEY", secrets.store.secret_key)
    servers = SERVERS.format(redis=redis_endpoint(config, "monitor").url, store=store.url, bucket=store.bucket)
    paths = [tmp_path / f"{name}.toml" for name in ("learner", "laptop", "phone")]
    paths[0].write_text(local, encoding="utf-8")
    for path in paths[1:]:
        text = local.replace(f'dir = "{tmp_path / "run"}"', f'dir = "{tmp_path / path.stem}"')
        path.write_text(text + servers, encoding="utf-8")
    return paths


def ask(path: Path, *words: str) -> str:
    done = CliRunner().invoke(app, [words[0], str(path), *words[1:]], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def status(path: Path) -> dict[str, Any]:
    """What `status --json` says, without what passes between two questions: times since somebody was heard."""
    found = json.loads(ask(path, "status", "--json"))
    del found["queue"]["learner_silent_ms"], found["queue"]["workers"], found["held_up"]
    return dict(found)


def watched(paths: list[Path]) -> list[str]:
    """Returns what `status --watch` says on each machine at first, while the run goes on."""
    words = [sys.executable, "-m", "echo_queue.cli", "status", "--watch"]
    watchers = [subprocess.Popen([*words, str(path)], stdout=subprocess.PIPE, text=True) for path in paths]
    first = [watcher.stdout.readline() for watcher in watchers if watcher.stdout]
    for watcher in watchers:
        watcher.kill()
        watcher.wait(DEADLINE_S)
    return [re.sub(r"  held up: .*", "", line) for line in first]


def last_picture(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns what `status --watch` leaves on a terminal at the run's end, without when workers were last heard and
    the line for redis-cli, which has this machine's address."""
    with monkeypatch.context() as terminal:
        terminal.setenv("TTY_COMPATIBLE", "1")
        terminal.setenv("COLUMNS", "100")
        screen = ask(path, "status", "--watch").split("look yourself")[0]
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[0-9.]+ s ago", "", screen)


def report(path: Path) -> str:
    """The page, without the table of settings, in which each machine has its own directory."""
    page = Path(ask(path, "report").strip()).read_text(encoding="utf-8")
    return re.sub(r"<h3>\[.*", "", page, flags=re.DOTALL)


def pauses(queue: Clients) -> bool:
    """Returns whether the learner waits, no lease can run out, and the last update is published and recorded."""
    found, newest = queue.status(), queue.newest_update()
    idle = found.in_flight == 0 and found.ready == 0 and found.drained - found.uncommitted < found.rules.batch
    published = found.published is not None and found.published.version == found.learner
    return idle and published and newest is not None and newest.version == found.learner


def all_agree(machines: list[Path], task: str) -> dict[str, Any]:
    """Compares all commands on all machines; returns the status."""
    learners, *others = machines
    for other in others:
        assert status(other) == status(learners)
        for words in (("audit",), ("audit", "--json"), ("show",), ("show", "--json"), ("show", task)):
            assert ask(other, *words) == ask(learners, *words), words
        assert report(other) == report(learners)
    return status(learners)


@pytest.mark.slow
def test_three_machines_say_the_same_while_a_run_goes_on_and_after_its_end(
    harness: LearnerHarness, machines: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Config = load(machines[0])
    harness.submit(config, PROMPTS)
    before = status(machines[1])
    assert (before["training"], before["update"], before["phase"]) == (None, None, "waiting")
    assert "waiting for a learner to begin" in ask(machines[1], "status")
    assert "–" in ask(machines[1], "status") and " 0.00 s" not in ask(machines[1], "status")

    worker = harness.work(config, generation_s=0.2)
    learner = harness.learn(config)
    queue = harness.queue(config)
    wait_until(lambda: queue.newest_update() is not None, "an update")
    worker.close()
    wait_until(lambda: pauses(queue), "the learner to have trained all that there is")
    newest = queue.newest_update()
    assert newest is not None
    during = all_agree(machines, newest.task)
    assert during["training"]["updates"] == newest.version.number == during["update"]["version"]
    assert during["update"]["kappa"] == 1 and during["skew"] == ""
    assert f"trained, in the update that made {newest.version}" in ask(machines[2], "show")
    lines = watched(machines)
    assert len(set(lines)) == 1, "status --watch"
    assert f"running  version {newest.version.number}  reward" in lines[0], lines[0]

    harness.work(config, name="w2")
    learner.join(300)
    after = all_agree(machines, newest.task)
    assert (after["phase"], after["training"]["updates"], after["queue"]["trained"]) == ("finished", 4, PROMPTS)
    pictures = [last_picture(path, monkeypatch) for path in machines]
    assert len(set(pictures)) == 1, "status --watch, which ends with the run"
    assert "finished" in pictures[0] and "trained 16" in " ".join(pictures[0].split()), pictures[0]

    queue.heartbeat("w3", Heartbeat("made up", Version(0, 0), "idle", release="9.9.9"))
    assert status(machines[2])["skew"] == f"w3 runs release 9.9.9; this command is release {__version__}"
    lineage = queue.resume().lineage
    queue.record(lineage, [UpdateRecord(Version(lineage, 5), "9.9.8", newest.task, b'{"of": "another form"}')])
    queue.advance(lineage, 5, 0, 1.0)
    skewed = status(machines[2])["skew"]
    assert "the learner runs release 9.9.8" in skewed and "1 update is recorded in a form that is unknown" in skewed
    assert "the learner runs release 9.9.8" in " ".join(ask(machines[2], "status").split())
