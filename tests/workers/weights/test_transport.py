"""The promises of every transport: the published bytes or an error, and each byte of the store read once."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from echo_queue.config import Config
from echo_queue.errors import DeadlineError, ServiceError
from echo_queue.weights.manifest import Route
from echo_queue.weights.reader import Damaged
from tests.servers.s3 import BUCKET
from tests.waiting import wait_until
from tests.workers.weights.conftest import Servers
from tests.workers.weights.peer_harness import CHUNK, DEADLINE_S, HASTY_S, SECRET, Member, PeerHarness, random_parts
from tests.workers.weights.test_exchange import corrupted, says, whole
from workers.weights.folder import FolderTransport
from workers.weights.peers.exchange import PeerExchange
from workers.weights.registry import open_transport
from workers.weights.transport import Site, WeightTransport

pytestmark = [pytest.mark.parametrize("kind", ["peers", "folder"]), pytest.mark.usefixtures("patient_sources")]


def fetched(transport: WeightTransport, route: Route, *, early: bool = False) -> list[bytes]:
    parts = transport.fetch((route,), DEADLINE_S, early=early)
    return [bytes(parts[part.key].memory()) for part in route.parts]


def others(transport: WeightTransport) -> int:
    """Returns the bytes that did not come from the store."""
    return sum(transport.fetched.values()) - transport.fetched.get("store", 0)


def held_store(peer_harness: PeerHarness, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """A store whose objects end after their first chunk, until it is let go: (it was asked, let it go)."""
    asked, go, stream = threading.Event(), threading.Event(), peer_harness.store.stream

    def held(*place: Any) -> Iterator[bytes]:
        for piece in stream(*place):
            yield piece
            asked.set()
            assert go.wait(DEADLINE_S)

    monkeypatch.setattr(peer_harness.store, "stream", held)
    return asked, go


def damage(peer_harness: PeerHarness, kind: str, route: Route, data: bytes) -> None:
    """Changes a byte in the middle of the first part at every source that is read before the store."""
    if kind == "peers":
        peer_harness.liar("liar", route, says(whole(route, corrupted(data, 5))))
    else:
        peer_harness.member("a", transport=kind).fetch(route)
        (placed,) = (peer_harness.folder.parent / "shared").glob("*.part")
        placed.write_bytes(corrupted(data, 5))


@pytest.mark.parametrize("early", [False, True])
def test_what_is_fetched_is_what_was_published(peer_harness: PeerHarness, kind: str, early: bool) -> None:
    datas = [*random_parts(20, parts=3), b""]
    route = peer_harness.publish(*datas)
    first, second = (peer_harness.member(name, transport=kind).exchange for name in "ab")
    assert fetched(first, route, early=early) == datas
    assert fetched(second, route, early=early) == datas
    assert (first.fetched["store"], others(first)) == (route.size, 0)
    assert (second.fetched["store"], others(second)) == (0, route.size)


def test_a_site_that_begins_at_once_reads_the_store_once(peer_harness: PeerHarness, kind: str) -> None:
    datas = random_parts(40, parts=4)
    route = peer_harness.publish(*datas)
    members = [peer_harness.member(name, transport=kind).exchange for name in "abc"]
    with ThreadPoolExecutor(len(members)) as pool:
        assert list(pool.map(lambda member: fetched(member, route), members)) == [datas] * 3
    assert sum(member.fetched["store"] for member in members) == route.size
    assert sum(others(member) for member in members) == 2 * route.size


def test_a_damaged_source_is_refused_and_the_store_serves_the_rest(peer_harness: PeerHarness, kind: str) -> None:
    datas = random_parts(16)
    route = peer_harness.publish(*datas)
    damage(peer_harness, kind, route, datas[0])
    second, third = (peer_harness.member(name, transport=kind).exchange for name in "bc")
    assert fetched(second, route) == datas
    assert (second.fetched["store"], others(second)) == (route.size - 5 * CHUNK, 5 * CHUNK)
    assert fetched(third, route) == datas
    assert others(third) == route.size, "nobody else meets the damage"


def test_a_damaged_store_is_one_clear_error_and_a_later_try_goes_on(peer_harness: PeerHarness, kind: str) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)
    peer_harness.store.put(route.parts[0].key, corrupted(datas[0], 3))
    transport = peer_harness.member("a", transport=kind).exchange
    with pytest.raises(Damaged):
        transport.fetch((route,), DEADLINE_S)
    peer_harness.store.put(route.parts[0].key, datas[0])
    assert fetched(transport, route) == datas
    assert sum(transport.fetched.values()) == route.size


def test_a_missing_object_is_one_clear_error(peer_harness: PeerHarness, kind: str) -> None:
    route = peer_harness.publish(*random_parts(8))
    peer_harness.store.delete([route.parts[0].key])
    with pytest.raises(ServiceError, match="no object"):
        peer_harness.member("a", transport=kind).exchange.fetch((route,), DEADLINE_S)


def test_what_does_not_arrive_in_time_is_named(
    peer_harness: PeerHarness, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = peer_harness.publish(*random_parts(8))
    _, go = held_store(peer_harness, monkeypatch)
    with pytest.raises(DeadlineError, match=r"0001\.00000007/full did not arrive within 0 s"):
        peer_harness.member("a", transport=kind).exchange.fetch((route,), 0.2)
    go.set()


def test_a_transport_that_is_closed_ends_what_it_fetches_and_begins_nothing(
    peer_harness: PeerHarness, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = peer_harness.publish(*random_parts(8, parts=2))
    asked, go = held_store(peer_harness, monkeypatch)
    transport = peer_harness.member("a", transport=kind).exchange
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(transport.fetch, (route,), DEADLINE_S)
        assert asked.wait(DEADLINE_S)
        transport.retire()
        transport.close()
        with pytest.raises(ServiceError, match="this worker is leaving"):
            fetching.result(timeout=DEADLINE_S)
        go.set()
    with pytest.raises(ServiceError, match="this worker is leaving"):
        transport.fetch((route,), DEADLINE_S)
    assert transport.prefetch(route.name, route.parts, DEADLINE_S) is None


def test_a_fetch_goes_on_from_what_was_prefetched(peer_harness: PeerHarness, kind: str) -> None:
    datas = random_parts(8, parts=3)
    route, transport = peer_harness.publish(*datas), peer_harness.member("a", transport=kind).exchange
    prefetch = transport.prefetch(route.name, route.parts[:1], DEADLINE_S)
    prefetch.add(route.parts[:2])
    wait_until(lambda: transport.fetched["store"] == sum(part.size for part in route.parts[:2]), "two parts")
    assert fetched(transport, route) == datas
    assert transport.fetched["store"] == route.size and prefetch.over.wait(DEADLINE_S)


def test_what_is_prefetched_and_dropped_takes_no_room(peer_harness: PeerHarness, kind: str) -> None:
    datas = random_parts(8, parts=2)
    route, member = peer_harness.publish(*datas), peer_harness.member("a", transport=kind)
    prefetch = member.exchange.prefetch(route.name, route.parts, DEADLINE_S)
    wait_until(lambda: sum(member.exchange.fetched.values()) == route.size, "the whole route")
    member.exchange.drop_prefetched()
    assert prefetch.over.is_set() and member.part_cache.bytes == 0
    assert fetched(member.exchange, route) == datas


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_freezes_in_the_middle_holds_up_nobody_for_long(
    servers: Servers, peer_harness: PeerHarness, kind: str, how: signal.Signals
) -> None:
    datas = random_parts(60, parts=2)
    route = peer_harness.publish(*datas)
    survivor: Member = peer_harness.member("b", transport=kind, chunk_deadline_s=HASTY_S)
    with started(servers, peer_harness, route, transport=kind) as process, ThreadPoolExecutor(1) as pool:
        assert process.stdout is not None
        fetching = None
        while line := process.stdout.readline().strip():
            if line == "begun":
                fetching = pool.submit(fetched, survivor.exchange, route)
            if line == "half":
                process.send_signal(how)
                break
        assert fetching is not None and fetching.result(timeout=DEADLINE_S) == datas
        assert survivor.exchange.fetched["store"] > 0
    late = peer_harness.member("c", transport=kind).exchange
    assert fetched(late, route) == datas
    if how == signal.SIGKILL:
        assert late.fetched["store"] == 0, "what the survivor fetched is shared"


@contextmanager
def started(
    servers: Servers, peer_harness: PeerHarness, route: Route, **settings: Any
) -> "Iterator[subprocess.Popen[str]]":
    """Another worker, as a process, which reads little more than half of the route."""
    place = {key: value for key, value in asdict(servers.store.endpoint(BUCKET)).items() if key != "directory"}
    spec = {
        "name": "a",
        "run": peer_harness.queue.run,
        "redis_port": servers.redis.port,
        "store": place,
        "folder": str(peer_harness.folder),
        "route": route.encode().decode(),
        "stops_at": round(0.6 * route.size),
        "settings": settings,
    }
    command = [sys.executable, "-m", "tests.workers.weights.node", orjson.dumps(spec).decode()]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_configuration_names_the_transport(peer_harness: PeerHarness, kind: str, tmp_path: Path) -> None:
    datas = random_parts(4)
    route = peer_harness.publish(*datas)
    settings = {"run": {"name": "r", "dir": str(tmp_path)}, "model": {"base": "x"}, "weights": {"transport": kind}}
    config = Config.model_validate(settings)
    peer_harness.heartbeat("w1")
    transport = open_transport(Site(config, peer_harness.queue.caller, peer_harness.store, "w1", SECRET))
    try:
        assert fetched(transport, route) == datas
        assert type(transport) is {"peers": PeerExchange, "folder": FolderTransport}[kind]
    finally:
        transport.close()
