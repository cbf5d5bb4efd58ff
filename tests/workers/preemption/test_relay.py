"""The relay writes what a metadata server says to the file that workers in containers watch."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echo_queue.config import Preemption
from tests.http_server import Reply
from tests.waiting import wait_until
from tests.workers.preemption.servers import ComputeEngine, Ec2, MetadataServer, serving
from workers.preemption import source
from workers.preemption.file import NoticeFile
from workers.preemption.notice_source import Notice, Recommendation
from workers.preemption.relay import main, relay

Begin = Callable[[str, MetadataServer], NoticeFile]


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[Begin]:
    """Starts a relay, and returns the other end: what a worker reads."""
    stop, threads, notice = threading.Event(), list[threading.Thread](), tmp_path / "notice"

    def begin(cloud: str, server: MetadataServer) -> NoticeFile:
        settings = Preemption.model_validate({"watch": cloud, "endpoint": server.url})
        threads.append(threading.Thread(target=relay, args=(source(settings), notice, stop, 0.02), daemon=True))
        threads[0].start()
        return NoticeFile(notice)

    yield begin
    stop.set()
    for thread in threads:
        thread.join(timeout=120)


def test_a_recommendation_a_notice_and_its_end_reach_the_worker(relayed: Begin) -> None:
    with serving(Ec2()) as server:
        heard = relayed("aws", server)
        server.until_asked(4)
        assert heard.poll() is None
        server.rebalance = b"{}"
        wait_until(lambda: isinstance(heard.poll(), Recommendation), "the word rest")
        server.interrupts("terminate", in_s=100)
        wait_until(lambda: isinstance(heard.poll(), Notice), "the notice")
        notice = heard.poll()
        assert isinstance(notice, Notice) and notice.within_s is not None and 60 <= notice.within_s <= 100
        server.action = server.rebalance = None
        wait_until(lambda: heard.poll() is None, "the end of a notice that was taken back")


def test_a_server_that_fails_after_a_notice_takes_nothing_back(relayed: Begin) -> None:
    with serving(ComputeEngine(longest_s=0.05)) as server:
        server.preempts()
        heard = relayed("gcp", server)
        wait_until(lambda: isinstance(heard.poll(), Notice), "the notice")
        server.broken = Reply(503)
        server.until_asked(len(server.asked) + 4)
        assert isinstance(heard.poll(), Notice)


def test_a_configuration_that_names_no_cloud_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], signal_handlers: None
) -> None:
    (tmp_path / "run.toml").write_text('[run]\nname = "r"\ndir = "r"\n')
    monkeypatch.setattr("sys.argv", ["relay", str(tmp_path / "run.toml"), str(tmp_path / "notice")])
    assert main() == 2
    assert "rollout.preemption.watch" in capsys.readouterr().err
