"""Each source of spot notices against a server that speaks its protocol."""

import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.config import Preemption
from tests.http_server import Reply
from tests.waiting import wait_until
from tests.workers.preemption.servers import (
    DEADLINE_S,
    AzureInstance,
    ComputeEngine,
    Ec2,
    MetadataServer,
    serving,
)
from workers.preemption import metadata, watch
from workers.preemption.azure import Azure
from workers.preemption.notice_source import Notice
from workers.shutdown import Shutdown

POLL_S = 0.02
SERVERS = {"aws": Ec2, "gcp": lambda: ComputeEngine(longest_s=0.1), "azure": lambda: AzureInstance("vm-1")}


@pytest.fixture
def shutdown() -> Iterator[Shutdown]:
    """Makes a shutdown, which is set after the test so that no watcher stays behind."""
    one = Shutdown()
    yield one
    one.set()


def watching(watch_for: str, server: MetadataServer | str, shutdown: Shutdown) -> None:
    endpoint = server if isinstance(server, str) else server.url
    watch(Preemption.model_validate({"watch": watch_for, "endpoint": endpoint, "poll_s": POLL_S}), shutdown)


def announce(server: MetadataServer) -> None:
    match server:
        case Ec2():
            server.interrupts("terminate", in_s=120)
        case ComputeEngine():
            server.preempts()
        case AzureInstance():
            server.announce("Preempt", server.name, in_s=30)


# Every cloud ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cloud", SERVERS)
def test_a_worker_stays_until_the_notice_and_leaves_then(cloud: str, shutdown: Shutdown) -> None:
    with serving(SERVERS[cloud]()) as server:
        watching(cloud, server, shutdown)
        server.until_asked(4)
        assert not shutdown.is_set() and not shutdown.resting
        announce(server)
        assert shutdown.wait(DEADLINE_S)
        assert shutdown.within_s is not None and shutdown.why != ""


@pytest.mark.parametrize("cloud", SERVERS)
def test_a_notice_given_before_the_worker_came_up_is_seen(cloud: str, shutdown: Shutdown) -> None:
    with serving(SERVERS[cloud]()) as server:
        announce(server)
        watching(cloud, server, shutdown)
        assert shutdown.wait(DEADLINE_S)


@pytest.mark.parametrize("cloud", SERVERS)
@pytest.mark.parametrize(
    "broken",
    [
        Reply(503, b"try again"),
        Reply(403),
        Reply(302, b"", {"Location": "http://127.0.0.1:1/"}),
        Reply(200, b"<html>log in</html>\n\xff"),
        Reply(200, b'{"action": "terminate", "time": "soon"}'),
        Reply(200, b'{"Events": [{"EventType": "Preempt", "EventId": "1", "Resources": ["x"], "NotBefore": "soon"}]}'),
        Reply(200, b"[" * 1_000_000),
    ],
    ids=["unavailable", "forbidden", "moved", "portal", "no-time", "no-date", "nested"],
)
def test_what_is_no_answer_is_no_notice_and_one_warning(
    cloud: str, broken: Reply, shutdown: Shutdown, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(SERVERS[cloud]()) as server:
        server.broken = broken
        watching(cloud, server, shutdown)
        server.until_asked(6)
        assert not shutdown.is_set() and not shutdown.resting
        assert len([line for line in caplog.records if line.levelno >= logging.WARNING]) == 1
        server.broken = None
        announce(server)
        assert shutdown.wait(DEADLINE_S)


@pytest.mark.parametrize("cloud", SERVERS)
def test_a_server_that_is_away_is_tried_until_it_is_there(
    cloud: str, shutdown: Shutdown, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata, "ANSWER_S", 0.1)
    with serving(SERVERS[cloud]()) as server, socket.create_server(("127.0.0.1", 0)) as silent:
        watching(cloud, f"http://127.0.0.1:{silent.getsockname()[1]}", shutdown)
        silent.settimeout(DEADLINE_S)
        for _ in range(3):  # it takes connections, and says nothing
            silent.accept()[0].close()
        watching(cloud, server, shutdown)
        announce(server)
        assert shutdown.wait(DEADLINE_S)
    assert "their source is polled again" in caplog.text


# EC2 ------------------------------------------------------------------------------------------------------------------


def test_a_token_is_used_until_it_expires_and_then_replaced(shutdown: Shutdown) -> None:
    with serving(Ec2(uses=5)) as server:
        watching("aws", server, shutdown)
        server.until_asked(3, "/latest/api/token")
        tokens = Counter(asked.headers.get("x-aws-ec2-metadata-token") for asked in server.asked)
        first, second = [count for token, count in tokens.items() if token][:2]
        assert first == second == 6, "each token serves until a question is refused"
        server.interrupts("stop", in_s=60)
        assert shutdown.wait(DEADLINE_S)
        assert "stop" in shutdown.why


def test_a_recommendation_to_rebalance_makes_a_worker_rest(shutdown: Shutdown) -> None:
    with serving(Ec2()) as server:
        server.rebalance = b'{"noticeTime": "2026-01-05T08:22:00Z"}'
        watching("aws", server, shutdown)
        server.until_asked(6)
        assert shutdown.resting and not shutdown.is_set()
        server.interrupts("terminate", in_s=100)
        assert shutdown.wait(DEADLINE_S)


@pytest.mark.parametrize(("in_s", "least", "most"), [(100, 60, 100), (-5, 0, 0), (86_400, 120, 120)])
def test_the_time_there_is_lies_between_none_and_two_minutes(
    in_s: float, least: float, most: float, shutdown: Shutdown
) -> None:
    with serving(Ec2()) as server:
        server.interrupts("terminate", in_s)
        watching("aws", server, shutdown)
        assert shutdown.wait(DEADLINE_S)
        assert shutdown.within_s is not None and least <= shutdown.within_s <= most


# Compute Engine -------------------------------------------------------------------------------------------------------


def test_a_long_poll_is_answered_as_soon_as_it_changes(shutdown: Shutdown) -> None:
    with serving(ComputeEngine()) as server:
        watching("gcp", server, shutdown)
        server.until_asked(2)
        assert [asked.query.get("last_etag") for asked in server.asked] == [None, "etag-FALSE"]
        server.preempts()
        assert shutdown.wait(DEADLINE_S) and shutdown.within_s == 30
        assert len(server.asked) == 2, "it was told by the question that waited"


def test_an_answer_without_googles_header_is_somebody_elses(shutdown: Shutdown) -> None:
    with serving(ComputeEngine()) as server:
        server.broken = Reply(200, b"TRUE")
        watching("gcp", server, shutdown)
        server.until_asked(3)
        assert not shutdown.is_set()


# Azure ----------------------------------------------------------------------------------------------------------------


def test_events_of_other_machines_and_of_other_kinds_do_not_concern_a_worker(shutdown: Shutdown) -> None:
    with serving(AzureInstance("vm_7")) as server:
        server.announce("Preempt", "vm_8", in_s=30)
        server.announce("Reboot", "vm_7", in_s=600)
        watching("azure", server, shutdown)
        server.until_asked(4, "/metadata/scheduledevents")
        assert not shutdown.is_set()
        event = server.announce("Preempt", "VM_7", in_s=30)
        assert shutdown.wait(DEADLINE_S)
        assert event in shutdown.why and shutdown.within_s is not None and shutdown.within_s <= 30


def test_an_event_that_has_begun_leaves_no_time(shutdown: Shutdown) -> None:
    with serving(AzureInstance("vm_7")) as server:
        server.announce("Preempt", "vm_7", in_s=None)
        watching("azure", server, shutdown)
        assert shutdown.wait(DEADLINE_S) and shutdown.within_s == 0


def test_an_event_is_acknowledged_as_the_process_ends_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_end = []
    monkeypatch.setattr("atexit.register", lambda *act: at_the_end.append(act))
    with serving(AzureInstance("vm_7")) as server:
        event = server.announce("Preempt", "vm_7", in_s=30)
        assert isinstance(Azure(server.url, acknowledge=False).poll(), Notice) and not at_the_end
        assert isinstance(Azure(server.url, acknowledge=True).poll(), Notice)
        assert server.started == []
        ((acknowledge, *about),) = at_the_end
        acknowledge(*about)
        assert server.started == [event]
    acknowledge(*about)  # nobody is there to hear it: the process ends all the same


# File and signals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "within_s"), [("", None), ("25\n", 25.0), ("-3", 0.0), ("soon", None), ("\x00ÿ", None)]
)
def test_a_file_that_appears_makes_a_worker_leave(
    text: str, within_s: float | None, shutdown: Shutdown, tmp_path: Path
) -> None:
    notice = tmp_path / "notice"
    watch(Preemption(watch="file", file=notice, poll_s=POLL_S), shutdown)
    assert not shutdown.wait(5 * POLL_S)
    (tmp_path / "partial").write_text(text, encoding="latin-1")
    (tmp_path / "partial").rename(notice)
    assert shutdown.wait(DEADLINE_S) and shutdown.within_s == within_s


def test_a_file_may_ask_for_rest_first(shutdown: Shutdown, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    notice.write_text("rest\n")
    watch(Preemption(watch="file", file=notice, poll_s=POLL_S), shutdown)
    wait_until(lambda: shutdown.resting, "the rest")
    assert not shutdown.is_set()
    notice.write_text("25")
    assert shutdown.wait(DEADLINE_S)


def test_a_path_that_is_no_file_is_no_notice(
    shutdown: Shutdown, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch(Preemption(watch="file", file=tmp_path, poll_s=POLL_S), shutdown)
    wait_until(lambda: "cannot be read" in caplog.text, "the warning")
    assert not shutdown.is_set()


@pytest.mark.usefixtures("signal_handlers")
def test_signals_make_a_worker_rest_and_leave(shutdown: Shutdown) -> None:
    watch(Preemption(watch="signal"), shutdown)
    os.kill(os.getpid(), signal.SIGUSR1)
    wait_until(lambda: shutdown.resting, "the rest")
    assert not shutdown.is_set()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert shutdown.wait(DEADLINE_S) and shutdown.why == "SIGUSR2"


def test_without_a_watch_nobody_is_asked(shutdown: Shutdown) -> None:
    watch(Preemption(), shutdown)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
