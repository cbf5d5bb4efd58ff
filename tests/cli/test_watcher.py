"""The watcher of a run against real services."""

import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import orjson
import pytest

from echo_queue.cli.inspect.live import watcher
from echo_queue.cli.inspect.live.watcher import RunWatcher, monitor
from echo_queue.cli.inspect.status import _phase_shown
from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis
from echo_queue.connections.endpoints import services_dir
from echo_queue.launch.servers.serving import Services
from echo_queue.queue import Caller, Heartbeat, LearnerQueue, Operator, Payloads, RunRules, WorkerQueue
from echo_queue.queue.keys import Keys
from echo_queue.records import Version
from echo_queue.reporting import outcome
from echo_queue.reporting.evaluation_record import EvaluationRecord
from echo_queue.reporting.metrics import MetricsLog
from tests.cli.test_run_end import end
from tests.evaluation.answered import given_up_at, result_at
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.synthetic import update


@pytest.fixture
def served(configure: Callable[..., Config]) -> Iterator[Config]:
    config = configure()
    services = Services(config)
    services.start()
    yield config
    services.stop()


def test_roles_that_start_are_loading_and_not_missing(served: Config) -> None:
    """A watcher of a run that nobody starts is told who is missing."""
    watched, started = RunWatcher(served), RunWatcher(served)
    started.expect_within(1e9)
    for one in (watched, started):
        one.refresh()
        assert one.status is not None and not one.workers_came
    assert watched.held_up == ("no learner has begun yet",)
    assert started.held_up == ()


def test_results_are_read_once_a_round_was_concluded_and_without_redis_those_of_the_file(served: Config) -> None:
    harness = QueueHarness(Clients.connected_as(served, "admin"), prompts=0)
    harness.submit("held-out", 2, order="held_out")
    watched = RunWatcher(served)
    watched.refresh()
    number = harness.queue.evaluate(0, harness.version, "held-out")
    assert number and watched.evaluations == ()
    harness.queue.conclude(0, number, result_at(20).line, given_up_at(40, "no worker").line)
    watched.refresh()
    assert watched.evaluations == (result_at(20),) == watched.picture("training").evaluations
    EvaluationRecord(served.run.dir).add([result_at(60).line])
    elsewhere = RunWatcher(
        served.model_copy(update={"redis": served.redis.model_copy(update={"url": "redis://127.0.0.1:1"})})
    )
    elsewhere.refresh()
    assert elsewhere.status is None and elsewhere.evaluations == (result_at(60),)


@pytest.fixture
def left_behind(served: Config) -> Config:
    """A run whose learner and worker were heard a while ago."""
    queue = Operator.connect(served)
    queue.configure(RunRules.of(served))
    LearnerQueue(Caller.connect(served, "learner", 5.0)).resume(RunRules.of(served))
    queue.reclaim()
    client = connect_redis(served, "admin", 5.0)
    state = Keys(served.run.name).state
    client.hset(state, "swept_ms", int(client.hget(state, "swept_ms") or 0) - 114_000)  # type: ignore[arg-type]
    return served


def test_who_was_heard_before_the_roles_are_started_is_not_who_is_loading(left_behind: Config) -> None:
    watched, started = RunWatcher(left_behind), RunWatcher(left_behind)
    started.expect_within(1e9)
    for one in (watched, started):
        one.refresh()
    assert any("the last one was heard 114 s ago" in cause for cause in watched.held_up)
    assert not any("the learner waits" in cause for cause in watched.held_up)
    assert started.held_up == () and not started.workers_came
    Operator.connect(left_behind).reclaim()
    started.refresh()
    assert started.held_up == (), "its workers still load"
    WorkerQueue(Caller.connect(left_behind, "worker", 5.0), Payloads.of(left_behind, None)).heartbeat(
        "w1", Heartbeat("made up", Version(1, 0), "idle"), every_s=60.0
    )
    started.refresh()
    assert started.workers_came


def test_a_run_in_which_nobody_lives_is_stopped(left_behind: Config) -> None:
    watched = RunWatcher(left_behind)
    watched.refresh()
    assert _phase_shown(watched) == "stopped: no learner or worker lives"
    Operator.connect(left_behind).reclaim()
    watched.refresh()
    assert _phase_shown(watched) == "running"


def test_services_that_start_are_no_trouble(configure: Callable[..., Config]) -> None:
    config = configure()
    watched, started = RunWatcher(config), RunWatcher(config)
    started.expect_within(1e9)
    for one in (watched, started):
        one.refresh()
    assert "have not started" in watched.trouble
    assert started.trouble == ""


def test_of_services_that_have_ended_no_address_is_told(
    configure: Callable[..., Config], served: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    Operator.connect(served).configure(RunRules.of(served))
    end = SimpleNamespace(status=monitor(served).status(), dead=(), ended=datetime.now(UTC))
    monkeypatch.setattr(watcher, "last_word", lambda config: end)
    over = RunWatcher(configure(run={"name": "t", "dir": str(served.run.dir.with_name("ended"))}))
    over.refresh()
    assert over.ended and "ended with it" in over.trouble
    assert over.picture("ended", redis_cli="redis-cli -p 33633").redis_cli == ""
    assert RunWatcher(served).picture("running", redis_cli="redis-cli -p 33633").redis_cli


def test_the_time_of_a_run_that_is_over_is_the_time_that_it_took(configure: Callable[..., Config]) -> None:
    config = configure()
    log = MetricsLog(config.run.dir / "metrics.jsonl")
    for version in (1, 40):
        log.write(update(version, wait_s=0.5, train_s=0.25, save_s=0.25))
    found = end(trained=640)
    outcome.write(config, 40, found.audit, found.status, dead=found.dead, sets=found.sets)
    over = RunWatcher(config)
    assert over.elapsed_s is None, "it is not known before anything was read"
    over.refresh()
    assert over.ended and over.elapsed_s == over.picture("finished").elapsed_s == 40


def test_a_store_that_does_not_answer_is_what_holds_a_run_up_that_stands_still(
    left_behind: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "STORE_ASKED_S", 0.0)
    Operator.connect(left_behind).reclaim()
    watched = RunWatcher(left_behind)
    watched.refresh()
    assert not any("store" in cause for cause in watched.held_up)
    store = orjson.loads((services_dir(left_behind) / "store.json").read_bytes())
    os.kill(store["pid"], signal.SIGKILL)
    again = RunWatcher(left_behind)
    again.refresh()
    assert any("the object store does not answer this machine" in cause for cause in again.held_up), again.held_up
    monkeypatch.setattr(watcher, "STORE_ASKED_S", 1e9)
    again.refresh()
    assert not any("store" in cause for cause in again.held_up), "a run that moves needs none of this machine"
