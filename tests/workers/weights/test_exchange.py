"""Routes through a region of real workers: read from the store once, and never wrong, whatever peers do."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from echo_queue.errors import DeadlineError, ServiceError
from echo_queue.queue import Joined, Peer
from echo_queue.weights.manifest import Route
from echo_queue.weights.reader import Damaged
from tests.waiting import wait_until
from tests.workers.weights.peer_harness import (
    CHUNK,
    DEADLINE_S,
    HASTY_S,
    SECRET,
    Conversation,
    Liar,
    Member,
    PeerHarness,
    random_parts,
)
from workers.weights.peers import source_choice
from workers.weights.peers.http1 import answer_head, parse_request
from workers.weights.peers.peer_auth import GREETING_DOMAIN, GREETING_END, PeerAuth
from workers.weights.peers.route_sources import PeerRouteSources

pytestmark = pytest.mark.usefixtures("patient_sources")


def together(peer_harness: PeerHarness, route: Route, members: Sequence[Member]) -> dict[str, tuple[int, int]]:
    """Lets all members fetch at once, joining in this order; returns bytes from store and peers by name."""
    took: dict[str, tuple[int, int]] = {}

    def go(member: Member) -> None:
        took[member.name] = member.fetch(route)

    threads = [threading.Thread(target=go, args=(member,), daemon=True) for member in members]
    for thread, member in zip(threads, members, strict=True):
        thread.start()
        peer_harness.await_joined(member.name, route)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(took) == len(members)
    return took


def test_a_region_reads_the_store_once(peer_harness: PeerHarness) -> None:
    datas = random_parts(64, parts=5)
    route = peer_harness.publish(*datas)
    members = [peer_harness.member(name) for name in "abcd"]
    took = together(peer_harness, route, members)
    assert sum(store for store, _ in took.values()) == route.size
    assert all(sum(both) == route.size for both in took.values())
    assert all(member.holds(route, datas) for member in members)
    # A piece is counted once it is sent, and its receiver may be through by then.
    wait_until(
        lambda: sum(member.exchange.sent for member in members) == 3 * route.size, "all to be counted, once each"
    )


def test_what_is_there_already_is_not_fetched_again(peer_harness: PeerHarness) -> None:
    route = peer_harness.publish(*random_parts(8, parts=2))
    member = peer_harness.member("a")
    assert member.fetch(route) == (route.size, 0)
    assert member.fetch(route) == (0, 0)


def test_a_late_joiner_needs_no_store(peer_harness: PeerHarness) -> None:
    datas = random_parts(16)
    route = peer_harness.publish(*datas)
    peer_harness.member("a").fetch(route)
    peer_harness.store.delete(part.key for part in route.parts)
    late = peer_harness.member("b")
    assert late.fetch(route) == (0, route.size)
    assert late.holds(route, datas)


def test_a_route_without_parts_and_an_empty_part_are_no_trouble(peer_harness: PeerHarness) -> None:
    member = peer_harness.member("a")
    assert member.fetch(peer_harness.publish()) == (0, 0)
    route = peer_harness.publish(b"", *random_parts(3))
    assert member.fetch(route) == (route.size, 0)


@pytest.mark.parametrize("settings", [{"peers": False}, {"reachable": False}, {"upload_usd_per_gb": 0.1}])
def test_nobody_is_fed_from_who_does_not_want_to_or_cannot(peer_harness: PeerHarness, settings: dict[str, Any]) -> None:
    route = peer_harness.publish(*random_parts(8))
    first, second = peer_harness.member("a", **settings), peer_harness.member("b")
    assert first.fetch(route) == (route.size, 0)
    assert second.fetch(route) == (route.size, 0)
    assert first.exchange.sent == 0


def test_a_leaf_waits_a_moment_for_a_head_instead_of_reading_the_store(peer_harness: PeerHarness) -> None:
    datas = random_parts(32)
    before, route = peer_harness.publish(*random_parts(2)), peer_harness.publish(*datas)
    head, leaf = peer_harness.member("head"), peer_harness.member("leaf", reachable=False)
    together(peer_harness, before, [head, leaf])
    route = Route("run", route.version._replace(number=8), None, route.root, None, route.parts)
    took = together(peer_harness, route, [leaf, head])
    assert took == {"leaf": (0, route.size), "head": (route.size, 0)}


def test_who_is_retired_feeds_nobody_new(peer_harness: PeerHarness) -> None:
    route = peer_harness.publish(*random_parts(8))
    first = peer_harness.member("a")
    first.fetch(route)
    first.exchange.retire()
    assert peer_harness.member("b").fetch(route) == (route.size, 0)


# Leaving --------------------------------------------------------------------------------------------------------------


def test_who_is_closed_stops_what_it_fetches_and_begins_nothing_more(
    peer_harness: PeerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = peer_harness.publish(*random_parts(64, parts=4))
    member, stream = peer_harness.member("a"), peer_harness.store.stream

    def held(*place: Any) -> Iterator[bytes]:
        """Gives the first chunk, and the rest once the worker leaves."""
        for piece in stream(*place):
            yield piece[:CHUNK]
            assert member.exchange._closed.wait(DEADLINE_S)
            yield piece[CHUNK:]

    monkeypatch.setattr(peer_harness.store, "stream", held)
    errors: list[ServiceError] = []

    def go() -> None:
        with pytest.raises(ServiceError, match="this worker is leaving") as caught:
            member.fetch(route)
        errors.append(caught.value)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    wait_until(lambda: member.exchange.fetched["store"] > 0, "the first bytes")
    member.exchange.close()
    thread.join(DEADLINE_S)
    assert len(errors) == 1
    wait_until(lambda: not [lane for lane in threading.enumerate() if lane.name == "download"], "the lanes' end")
    assert member.exchange.fetched["store"] < route.size / 2
    with pytest.raises(ServiceError, match="this worker is leaving"):
        member.fetch(route)


EXIT = """
import sys, threading, time
from contextlib import suppress
from pathlib import Path
from echo_queue.errors import ServiceError
from tests.workers.weights.peer_harness import random_parts, route_of
from echo_queue.config import Weights
from workers.weights.peers.exchange import PeerExchange
from workers.weights.cache.part_cache import PartCache

class Away:
    def stream(self, *place):
        began.set()
        time.sleep(300)
        yield b""

began = threading.Event()
part_cache = PartCache(Path(sys.argv[1]), 1 << 30)
exchange = PeerExchange(None, Away(), part_cache, "a", Weights(peers=False), secret=b"")
route = route_of(*random_parts(8, parts=4))


def fetch():
    with suppress(ServiceError):
        exchange.fetch_route(route, 600.0)

threading.Thread(target=fetch, daemon=True).start()
assert began.wait(120)
exchange.close()
"""


@pytest.mark.slow
def test_a_process_ends_at_once_though_a_route_is_coming_from_a_store_that_is_silent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXIT, str(tmp_path / "part_cache")]
    environment = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_who_tries_again_in_vain_keeps_its_place_before_those_who_wait_for_it(peer_harness: PeerHarness) -> None:
    route = peer_harness.publish(*random_parts(8))
    data = peer_harness.store.get(route.parts[0].key, 1 << 20)
    peer_harness.store.put(route.parts[0].key, bytes(len(data)))
    member = peer_harness.member("a")
    for _ in range(2):
        with pytest.raises(Damaged):
            member.fetch(route)
        peer_harness.heartbeat("b")
        peer_harness.queue.join(Peer("b", "default", "127.0.0.1:1"), route.name)
    chain = peer_harness.queue.client.zrange(f"{peer_harness.queue.keys.prefix}chain:default:{route.name}", 0, -1)
    assert chain == [b"a", b"b"]


def test_who_was_asked_to_leave_while_it_joined_is_withdrawn(
    peer_harness: PeerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, member, join = peer_harness.publish(*random_parts(4)), peer_harness.member("a"), peer_harness.queue.join

    def late(*about: Any, **more: Any) -> Joined:
        member.exchange.retire()
        return join(*about, **more)

    monkeypatch.setattr(peer_harness.queue, "join", late)
    member.fetch(route)
    monkeypatch.undo()
    assert not peer_harness.queue.client.zrange(f"{peer_harness.queue.keys.prefix}rates:default", 0, -1)
    assert peer_harness.member("b").fetch(route) == (route.size, 0)


# Connections ----------------------------------------------------------------------------------------------------------


def sockets() -> int:
    open_files = Path("/proc/self/fd")
    return sum(os.path.realpath(place).rpartition("/")[2].startswith("socket:") for place in open_files.iterdir())


def test_no_connection_is_kept_to_who_feeds_no_more(peer_harness: PeerHarness) -> None:
    member = peer_harness.member("reader")
    for number in range(8):
        route = peer_harness.publish(*random_parts(4))
        route = Route("run", route.version._replace(number=number), None, route.root, None, route.parts)
        other = peer_harness.member(f"m{number}")
        other.fetch(route)
        assert member.fetch(route) == (0, route.size)
        other.close()
        if number == 0:
            open_after_one = sockets()
    wait_until(lambda: sockets() <= open_after_one, "the end of the connections to peers that have left")


# Peers that are busy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_s", "waited_s"), [(None, 0.5), (1, 1.0), (999, 2.0)])
def test_a_busy_peer_is_asked_again_when_it_says_within_one_deadline(
    peer_harness: PeerHarness, asked_s: int | None, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)
    times: list[float] = []
    pauses_s: list[float] = []
    failed = PeerRouteSources.failed

    def recorded(sources: PeerRouteSources, *failure: Any) -> float:
        pauses_s.append(failed(sources, *failure))
        return pauses_s[-1]

    monkeypatch.setattr(PeerRouteSources, "failed", recorded)

    def converse(connection: socket.socket, head: bytes) -> None:
        times.append(time.monotonic())
        more = {} if asked_s is None else {"retry_after": asked_s}
        connection.sendall(answer_head(503, **more) if len(times) == 1 else whole(route, datas[0]))

    peer_harness.liar("busy", route, converse)
    settings = {"chunk_deadline_s": waited_s} if asked_s == 999 else {}
    assert peer_harness.member("b", **settings).fetch(route) == (0, route.size)
    assert pauses_s == [waited_s]
    assert len(times) == 2 and waited_s <= times[1] - times[0]


# Peers that fail ------------------------------------------------------------------------------------------------------


def whole(route: Route, data: bytes) -> bytes:
    return answer_head(200, len(data), x_landed=len(route.parts[0].chunks)) + data


def says(answer: bytes) -> Conversation:
    return lambda connection, head: connection.sendall(answer)


def corrupted(data: bytes, chunk: int) -> bytes:
    place = chunk * CHUNK + 77
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def silent(connection: socket.socket, head: bytes) -> None:
    connection.recv(1)


def trickling(route: Route, data: bytes) -> Conversation:
    """Makes a peer that sends a byte now and then, and answers quickly when it is asked how far it is."""

    def converse(connection: socket.socket, head: bytes) -> None:
        connection.sendall(answer_head(200, len(data), x_landed=len(route.parts[0].chunks)))
        if parse_request(head).method == "GET":
            for at in range(len(data)):
                connection.sendall(data[at : at + 1])
                time.sleep(0.05)

    return converse


def test_a_bad_chunk_is_neither_kept_nor_passed_on_and_its_server_never_asked_again(peer_harness: PeerHarness) -> None:
    datas = random_parts(16)
    route = peer_harness.publish(*datas)
    liar = peer_harness.liar("liar", route, says(whole(route, corrupted(datas[0], 5))))
    member, after = peer_harness.member("b"), peer_harness.member("c")
    took = together(peer_harness, route, [member, after])
    assert member.holds(route, datas) and after.holds(route, datas)
    store, peer = took["b"]
    assert (store, peer) == (route.size - 5 * CHUNK, 5 * CHUNK)
    assert after.exchange.fetched["store"] == 0
    assert len(liar.asked) == 1
    assert peer_harness.queue.client.hkeys(f"{peer_harness.queue.keys.prefix}reports:liar") == [b"bad b"]
    more = peer_harness.publish(*random_parts(4))
    assert member.fetch(more) == (more.size, 0)
    assert len(liar.asked) == 1


LIES = {
    "no HTTP": says(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "bytes": says(bytes(range(256)) * 64),
    "a longer head than any": says(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 2000 + b"\r\n"),
    "a length that cannot be": says(answer_head(200, 10**12) + bytes(100)),
    "a length of another part": says(answer_head(200, 7) + bytes(7)),
    "a length that is no number": says(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
    "two lengths": says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"),
    "chunked": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    "a redirect": says(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
    "not found": says(answer_head(404)),
    "unauthorized": says(answer_head(401)),
    "busy for ever": says(answer_head(503, retry_after=1)),
    "nothing, and closes": lambda connection, head: None,
    "nothing, and stays": silent,
}


def asked_for_a_part(liar: Liar) -> int:
    """Counts the requests for a part, each of which costs one deadline at most."""
    return sum(parse_request(head).method == "GET" for head in liar.asked)


@pytest.mark.parametrize("lie", LIES)
def test_whatever_a_peer_answers_the_route_arrives_whole(peer_harness: PeerHarness, lie: str) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)
    liar = peer_harness.liar("liar", route, LIES[lie])
    member = peer_harness.member("b", chunk_deadline_s=HASTY_S)
    assert member.fetch(route) == (route.size, 0)
    assert member.holds(route, datas)
    assert asked_for_a_part(liar) <= (2 if lie == "busy for ever" else 1)


@pytest.mark.parametrize("sent", [0, 1, 3 * CHUNK, 3 * CHUNK + 5])
@pytest.mark.parametrize("then", ["closes", "hangs"])
def test_a_peer_that_stops_in_the_middle_costs_one_deadline(peer_harness: PeerHarness, sent: int, then: str) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)

    def converse(connection: socket.socket, head: bytes) -> None:
        if parse_request(head).method == "GET":
            connection.sendall(whole(route, datas[0])[: len(whole(route, datas[0])) - len(datas[0]) + sent])
        if then == "hangs":
            connection.recv(1)

    liar = peer_harness.liar("liar", route, converse)
    settings = {"chunk_deadline_s": 4 * HASTY_S if sent >= CHUNK else HASTY_S} if then == "hangs" else {}
    member = peer_harness.member("b", **settings)
    store, peer = member.fetch(route)
    assert peer == sent // CHUNK * CHUNK and store == route.size - peer
    assert member.holds(route, datas)
    assert asked_for_a_part(liar) == 1


def test_a_peer_that_sends_a_byte_now_and_then_costs_one_deadline(peer_harness: PeerHarness) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)
    liar = peer_harness.liar("liar", route, trickling(route, datas[0]))
    member = peer_harness.member("b", chunk_deadline_s=HASTY_S)
    assert member.fetch(route) == (route.size, 0)
    assert asked_for_a_part(liar) == 1


def dry(connection: socket.socket, head: bytes) -> None:
    """Answers every question, and says that it waits for its own source."""
    request = parse_request(head)
    length = 8 * CHUNK - 100 - request.start * CHUNK
    connection.sendall(answer_head(200, length, x_landed=request.start))
    if request.method == "GET":
        connection.recv(1)


@pytest.mark.slow
def test_relays_that_give_nothing_are_left_reported_and_not_asked_again(peer_harness: PeerHarness) -> None:
    route, later = peer_harness.publish(*random_parts(8)), peer_harness.publish(*random_parts(8))
    later = Route("run", later.version._replace(number=8), None, later.root, None, later.parts)
    liars = [peer_harness.liar(name, route, dry) for name in ("dry1", "dry2", "dry3")]
    for number, liar in enumerate(liars, 1):
        peer_harness.queue.join(Peer(f"dry{number}", "default", liar.address), later.name)
    member = peer_harness.member("b", chunk_deadline_s=2 * HASTY_S)
    assert member.fetch(route) == (route.size, 0)
    assert [asked_for_a_part(liar) for liar in liars] == [1, 1, 1]
    for name in ("dry1", "dry2", "dry3"):
        assert peer_harness.queue.client.hkeys(f"{peer_harness.queue.keys.prefix}reports:{name}") == [b"dry b"]
    assert member.fetch(later) == (later.size, 0)
    assert [asked_for_a_part(liar) for liar in liars] == [1, 1, 1]


@pytest.mark.slow
def test_a_relay_that_gives_nothing_is_left_for_one_that_has_the_rest(peer_harness: PeerHarness) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)
    peer_harness.member("a").fetch(route)
    peer_harness.liar("dry", route, dry)
    member = peer_harness.member("b", chunk_deadline_s=4 * HASTY_S)
    assert member.fetch(route) == (0, route.size)
    assert member.holds(route, datas)


def test_a_peer_that_freezes_is_left_as_fast_as_its_rate_allows(
    peer_harness: PeerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks came at once. The deadline for a peer of which nothing is known is longer than the test's."""
    monkeypatch.setattr(source_choice, "LEAST_SILENCE_S", HASTY_S)
    datas = random_parts(8)
    route = peer_harness.publish(*datas)

    def converse(connection: socket.socket, head: bytes) -> None:
        if parse_request(head).method == "GET":
            connection.sendall(answer_head(200, len(datas[0]), x_landed=8) + datas[0][: 4 * CHUNK])
        connection.recv(1)

    peer_harness.liar("frozen", route, converse)
    member = peer_harness.member("b", chunk_deadline_s=10 * DEADLINE_S)
    assert member.fetch(route) == (route.size - 4 * CHUNK, 4 * CHUNK)


def test_a_peer_that_cannot_be_reached_is_reported_and_shunned(peer_harness: PeerHarness) -> None:
    route = peer_harness.publish(*random_parts(4))
    liar = peer_harness.liar("liar", route, silent)
    liar.close()
    member = peer_harness.member("b")
    assert member.fetch(route) == (route.size, 0)
    assert peer_harness.queue.client.hkeys(f"{peer_harness.queue.keys.prefix}reports:liar") == [b"unreachable b"]


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"EQ1 9999999999 " + b"0" * 64 + b"\r\n\r\n"])
def test_a_service_that_is_no_peer_gets_not_one_byte_of_whoever_was_sent_to_it(
    peer_harness: PeerHarness, says: bytes
) -> None:
    """A worker may name any address as its own; a peer proves that it is one before a request is sent."""
    route = peer_harness.publish(*random_parts(4))
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(says)
                got.append(connection.recv(4096))

        service = threading.Thread(target=serve, daemon=True)
        service.start()
        peer_harness.heartbeat("odd")
        peer_harness.queue.join(Peer("odd", "default", f"127.0.0.1:{listener.getsockname()[1]}"), route.name)
        assert peer_harness.member("b", chunk_deadline_s=HASTY_S).fetch(route) == (route.size, 0)
        service.join(DEADLINE_S)
    assert got == [b""]


class LyingMember(PeerAuth):
    """A member of the run whose greetings are signed for whatever time it likes."""

    def __init__(self, expires: str) -> None:
        super().__init__(SECRET)
        self._words = expires

    def greeting(self, server: str) -> bytes:
        return f"EQ1 {self._words} {self._mark(GREETING_DOMAIN, server, self._words)}".encode() + GREETING_END


@pytest.mark.parametrize("expires", ["soon", "9" * 5000, "-1", "1_7", "\u0661\u0667", "1e9", "inf", ""])
def test_a_member_that_greets_with_no_time_costs_nothing_but_a_report(peer_harness: PeerHarness, expires: str) -> None:
    route = peer_harness.publish(*random_parts(4))
    first = peer_harness.member("a")
    first.fetch(route)
    first.exchange._server._tokens = LyingMember(expires)
    assert peer_harness.member("b").fetch(route) == (route.size, 0)
    assert peer_harness.queue.client.hkeys(f"{peer_harness.queue.keys.prefix}reports:a") == [b"unreachable b"]


@pytest.mark.parametrize("field", ["address", "region", "rate", "leaf"])
@pytest.mark.parametrize(
    "value", [b"\xff\xfe", b"a\0b:80", b"10.0.0.1:80\r\nX: y", "h\u00f6st:80".encode(), b"9" * 5000]
)
def test_a_peer_that_wrote_any_bytes_about_itself_keeps_nobody_from_the_store(
    peer_harness: PeerHarness, field: str, value: bytes
) -> None:
    """Its Redis user may write the hash by hand."""
    route = peer_harness.publish(*random_parts(4))
    peer_harness.heartbeat("odd")
    peer_harness.queue.join(Peer("odd", "default", "127.0.0.1:9"), route.name)
    peer_harness.queue.client.hset(peer_harness.queue.keys.peer("odd"), field, value)
    assert peer_harness.member("b").fetch(route) == (route.size, 0)


def test_a_peer_whose_name_is_no_name_keeps_nobody_from_the_store(peer_harness: PeerHarness) -> None:
    route, keys = peer_harness.publish(*random_parts(4)), peer_harness.queue.keys
    liar = peer_harness.liar("odd", route, silent)
    client: Any = peer_harness.queue.client
    for key in (keys.peer("odd"), keys.worker("odd")):
        client.copy(key, key.replace("odd", "\u00f6dd"))
    client.zadd(f"{keys.prefix}chain:default:{route.name}", {"\u00f6dd": 9})
    assert peer_harness.member("b", chunk_deadline_s=HASTY_S).fetch(route) == (route.size, 0)
    assert asked_for_a_part(liar) == 1


def test_no_connection_is_made_to_an_address_outside_the_networks_of_peers(peer_harness: PeerHarness) -> None:
    route = peer_harness.publish(*random_parts(4))
    liar = peer_harness.liar("liar", route, silent)
    member = peer_harness.member("b", peer_host="10.0.0.7", peer_networks=["10.0.0.0/8"])
    assert member.fetch(route) == (route.size, 0)
    assert liar.accepted == 0
    with pytest.raises(ServiceError, match=r"weights\.peer_host: 10\.0\.0\.7 is no address of a peer"):
        peer_harness.member("c", peer_host="10.0.0.7", peer_networks=["192.168.0.0/16"])


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "a..b:80", ":", "no-such-host.invalid:80"])
def test_an_address_that_is_none_costs_nothing_but_a_report(peer_harness: PeerHarness, address: str) -> None:
    route = peer_harness.publish(*random_parts(4))
    peer_harness.heartbeat("odd")
    peer_harness.queue.join(Peer("odd", "default", address), route.name)
    assert peer_harness.member("b").fetch(route) == (route.size, 0)


def test_with_another_secret_nobody_gets_anything_and_the_store_serves(peer_harness: PeerHarness) -> None:
    route = peer_harness.publish(*random_parts(4))
    first, stranger = peer_harness.member("a"), peer_harness.member("b", secret=b"another")
    first.fetch(route)
    assert stranger.fetch(route) == (route.size, 0)
    assert first.exchange.sent == 0


def test_the_next_upstream_serves_when_the_nearest_lies(peer_harness: PeerHarness) -> None:
    datas = random_parts(16)
    route = peer_harness.publish(*datas)
    peer_harness.member("a").fetch(route)
    peer_harness.liar("liar", route, says(whole(route, corrupted(datas[0], 2))))
    member = peer_harness.member("c")
    assert member.fetch(route) == (0, route.size)


# The store ------------------------------------------------------------------------------------------------------------


def test_a_truncated_object_is_one_clear_error_and_no_weights(peer_harness: PeerHarness) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)
    for kept in (0, 1, 3 * CHUNK, 3 * CHUNK + 1):
        peer_harness.store.put(route.parts[0].key, datas[0][:kept])
        member = peer_harness.member(f"b{kept}", peers=False)
        with pytest.raises(Damaged):
            member.fetch(route)
        with pytest.raises(ServiceError, match="is missing"):
            member.part_cache.open(route.parts[0]).memory()


def test_a_spoiled_or_longer_object_is_one_clear_error(peer_harness: PeerHarness) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)
    for number, wrong in enumerate((corrupted(datas[0], 3), datas[0] + b"more")):
        peer_harness.store.put(route.parts[0].key, wrong)
        with pytest.raises(Damaged):
            peer_harness.member(f"b{number}", peers=False).fetch(route)


def test_a_missing_object_is_one_clear_error(peer_harness: PeerHarness) -> None:
    route = peer_harness.publish(*random_parts(8))
    peer_harness.store.delete([route.parts[0].key])
    with pytest.raises(ServiceError, match="no object"):
        peer_harness.member("a").fetch(route)


def test_what_does_not_arrive_in_time_is_one_error_that_names_it(peer_harness: PeerHarness) -> None:
    route = peer_harness.publish(*random_parts(8))
    peer_harness.liar("liar", route, silent)
    with pytest.raises(DeadlineError, match=r"0001.00000007/full did not arrive within 0 s"):
        peer_harness.member("b", chunk_deadline_s=HASTY_S).fetch(route, deadline_s=0.2)


def test_after_an_error_a_later_try_goes_on_from_what_has_landed(peer_harness: PeerHarness) -> None:
    datas = random_parts(8)
    route = peer_harness.publish(*datas)
    peer_harness.store.put(route.parts[0].key, corrupted(datas[0], 5))
    member = peer_harness.member("a")
    with pytest.raises(Damaged):
        member.fetch(route)
    peer_harness.store.put(route.parts[0].key, datas[0])
    assert member.fetch(route) == (route.size - 5 * CHUNK, 0)
    assert member.holds(route, datas)
