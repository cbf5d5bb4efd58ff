"""Peers that die, freeze or crawl in the middle of a transfer, as processes; the workers behind them go on."""

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from echo_queue.weights.manifest import Route
from tests.servers.s3 import BUCKET
from tests.waiting import wait_until
from tests.workers.weights.conftest import Servers
from tests.workers.weights.peer_harness import CHUNK, DEADLINE_S, Member, PeerHarness, random_parts
from workers.weights.peers import route_sources, source_choice

pytestmark = pytest.mark.slow  # the transfers take their seconds

CHUNK_DEADLINE_S = 3.0
RATE_MBIT = 16.0
CHUNKS, PARTS = 120, 2


class Node:
    """A member in a process of its own, which has begun to fetch."""

    def __init__(self, servers: Servers, peer_harness: PeerHarness, name: str, route: Route, **settings: Any) -> None:
        spec = {
            "name": name,
            "run": peer_harness.queue.run,
            "redis_port": servers.redis.port,
            "store": {
                key: value for key, value in asdict(servers.store.endpoint(BUCKET)).items() if key != "directory"
            },
            "folder": str(peer_harness.folder),
            "route": route.encode().decode(),
            "settings": {"chunk_deadline_s": CHUNK_DEADLINE_S} | settings,
        }
        command = [sys.executable, "-m", "tests.workers.weights.node", orjson.dumps(spec).decode()]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
        )

    def says(self, word: str) -> list[str]:
        """Returns the words after `word` in the first line that begins with it."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline().split():
            if line[0] == word:
                return line[1:]
        raise AssertionError(f"it ended without {word}")

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(timeout=DEADLINE_S)


Start = Callable[..., Node]


@pytest.fixture
def start(servers: Servers, peer_harness: PeerHarness) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(name: str, route: Route, **settings: Any) -> Node:
            node = Node(servers, peer_harness, name, route, **settings)
            stack.callback(node.close)
            peer_harness.await_joined(name, route)
            return node

        yield begin


class Fetching(threading.Thread):
    def __init__(self, member: Member, route: Route) -> None:
        super().__init__(daemon=True)
        self.member, self.route = member, route
        self.took: tuple[int, int] = (-1, -1)
        self.start()

    def run(self) -> None:
        self.took = self.member.fetch(self.route)

    def end(self) -> "Fetching":
        self.join(DEADLINE_S)
        assert sum(self.took) == self.route.size
        return self


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_relay_that_dies_or_freezes_halfway_costs_one_deadline(
    peer_harness: PeerHarness,
    start: Start,
    how: signal.Signals,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One deadline, because the worker behind it leaves one peer, once, and the worker behind that one leaves none."""
    monkeypatch.setattr(source_choice, "LEAST_SILENCE_S", CHUNK_DEADLINE_S)
    caplog.set_level(logging.INFO, route_sources.__name__)
    datas = random_parts(CHUNKS, PARTS)
    route = peer_harness.publish(*datas)
    settings: dict[str, Any] = {"chunk_deadline_s": CHUNK_DEADLINE_S}
    head = peer_harness.member("a", upload_mbit=RATE_MBIT, **settings)
    head.fetch(route)
    relay = start("b", route)
    third, last = peer_harness.member("c", **settings), peer_harness.member("d", **settings)
    fetching = [Fetching(third, route)]
    peer_harness.await_joined("c", route)
    fetching.append(Fetching(last, route))
    relay.says("half")
    relay.process.send_signal(how)
    ends = [one.end() for one in fetching]
    assert all(one.member.holds(route, datas) for one in ends)
    assert [one.took[0] for one in ends] == [0, 0], "the store was not needed"
    assert last.exchange.fetched["peer"] == route.size
    # A piece is counted once it is sent, and its receiver may be through by then.
    wait_until(lambda: third.exchange.sent == route.size, "all to be counted: who waits behind who waits stays there")
    left = [record for record in caplog.records if record.name == route_sources.__name__]
    assert len(left) == 1, "every peer that is left costs a deadline"


def test_when_the_head_dies_its_follower_goes_on_with_the_store_and_stays_the_only_one(
    peer_harness: PeerHarness, start: Start
) -> None:
    datas = random_parts(CHUNKS, PARTS)
    route = peer_harness.publish(*datas)
    head = start("a", route, upload_mbit=RATE_MBIT)
    settings: dict[str, Any] = {"chunk_deadline_s": CHUNK_DEADLINE_S}
    second, third = peer_harness.member("b", **settings), peer_harness.member("c", **settings)
    fetching = [Fetching(second, route)]
    peer_harness.await_joined("b", route)
    fetching.append(Fetching(third, route))
    head.says("half")
    wait_until(lambda: second.exchange.fetched["peer"] >= route.size / 4, "a quarter of the route")
    head.process.kill()
    ends = [one.end() for one in fetching]
    assert all(one.member.holds(route, datas) for one in ends)
    assert ends[0].took[0] > 0 and ends[1].took == (0, route.size)


def test_a_relay_that_crawls_is_left_for_one_that_is_further(peer_harness: PeerHarness, start: Start) -> None:
    """The peer's own line is slow: the workers behind it see no failure, only that others are further."""
    datas = random_parts(CHUNKS, PARTS)
    route = peer_harness.publish(*datas)
    head = peer_harness.member("a", upload_mbit=4 * RATE_MBIT)
    head.fetch(route)
    crawler = start("b", route, upload_mbit=RATE_MBIT / 10)
    crawler.says("half")
    third = Fetching(peer_harness.member("c"), route).end()
    assert third.took == (0, route.size)
    crawler.says("whole")
    from_head = head.exchange.sent - route.size
    assert from_head > 0.7 * route.size, "the crawler gave little before it was left"


@pytest.mark.parametrize("slow", [True, False])
def test_a_head_that_crawls_is_left_for_the_store_only_if_that_is_faster(
    peer_harness: PeerHarness, start: Start, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr(source_choice, "STRANGE_S", 0.5)
    datas = random_parts(CHUNKS, PARTS)
    route = peer_harness.publish(*datas)
    start("a", route, upload_mbit=RATE_MBIT / 10 if slow else RATE_MBIT).says("whole")
    if not slow:
        stream = peer_harness.store.stream
        monkeypatch.setattr(peer_harness.store, "stream", lambda *place: _slowly(stream(*place)))
    second = Fetching(peer_harness.member("b"), route).end()
    store, peer = second.took
    assert second.member.holds(route, datas)
    assert (store > 2 * peer) if slow else (store <= source_choice.PROBE_CHUNKS * CHUNK)


def _slowly(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        time.sleep(8 * len(piece) / (RATE_MBIT * 1e6))
        yield piece


def test_a_worker_killed_and_started_under_its_name_is_fed_by_who_was_behind_it(
    peer_harness: PeerHarness, start: Start
) -> None:
    route = peer_harness.publish(*random_parts(8))
    first = start("a", route)
    first.says("whole")
    peer_harness.member("b").fetch(route)
    first.process.kill()
    first.process.wait(timeout=DEADLINE_S)
    again = start("a", route)
    assert again.says("whole") == ["0", str(route.size)]
