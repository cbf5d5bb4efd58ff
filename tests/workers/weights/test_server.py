"""The peer server against clients of every kind, over real sockets."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tests.workers.weights.peer_harness import CHUNK, DEADLINE_S, SECRET, part_of, random_parts
from workers.weights.cache.part_cache import PartCache
from workers.weights.cache.part_file import PartFile
from workers.weights.peers import server as serving
from workers.weights.peers.http1 import Wire, parse_answer, path_of, request_head
from workers.weights.peers.peer_auth import GREETING_END, PeerAuth
from workers.weights.peers.server import CONNECTIONS, STRANGERS_PER_ADDRESS, PeerServer

NAME = "w1"
PARTS = 12


class PeerServerHarness:
    """A server with one part of 12 chunks, of which none has landed yet."""

    def __init__(self, folder: Path, **settings: float) -> None:
        (self.data,) = random_parts(PARTS)
        self.part = part_of(self.data)
        self.part_cache = PartCache(folder / NAME, 1 << 20)
        self.file: PartFile = self.part_cache.open(self.part)
        self.tokens = PeerAuth(SECRET)
        self.server = PeerServer(self.part_cache, self.tokens, NAME, host="127.0.0.1", **settings)  # type: ignore[arg-type]
        self.server.start()

    def land(self, *indices: int) -> None:
        for index in indices:
            assert self.file.write(index, self.data[index * CHUNK : (index + 1) * CHUNK])

    def land_all(self) -> None:
        self.land(*range(PARTS))

    def call(self, host: str = "127.0.0.1") -> socket.socket:
        """Connects to the server, from the address `host`, and hears its greeting."""
        connection = socket.create_connection(
            ("127.0.0.1", self.server.port), timeout=DEADLINE_S, source_address=(host, 0)
        )
        greeting = exactly(connection, len(self.tokens.greeting(NAME)))
        self.tokens.check_greeting(greeting.removesuffix(GREETING_END), NAME)
        return connection

    def peer(self, host: str = "127.0.0.1") -> socket.socket:
        """Connects, and shows a valid token."""
        connection = self.call(host)
        connection.sendall(self.ask(0, "HEAD"))
        assert status(connection) == 200
        return connection

    def ask(self, start: int = 0, method: str = "GET", key: str = "", token: str | None = None) -> bytes:
        path = path_of(key or self.part.key, start)
        return request_head(method, path, "h", self.tokens.mint("w2", NAME, path) if token is None else token)

    def close(self) -> None:
        self.server.close()
        self.part_cache.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the server wait for a test that stands still, unless the test says otherwise."""
    for name in ("STRANGER_S", "HEAD_DEADLINE_S", "IDLE_S", "READER_S"):
        monkeypatch.setattr(serving, name, DEADLINE_S)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[PeerServerHarness]:
    harness = PeerServerHarness(tmp_path)
    yield harness
    harness.close()


def heard(connection: socket.socket) -> bytes:
    """Reads until the server closes the connection."""
    said = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            said += data
    return said


def status(connection: socket.socket) -> int:
    head = Wire(connection).head(DEADLINE_S)
    assert head is not None
    return parse_answer(head).status


def exactly(connection: socket.socket, count: int) -> bytes:
    said = b""
    while len(said) < count:
        data = connection.recv(count - len(said))
        assert data, f"{len(said)} bytes, not {count}"
        said += data
    return said


def test_chunks_go_out_as_they_land(harness: PeerServerHarness) -> None:
    harness.file.expect(True)
    with harness.call() as connection:
        connection.sendall(harness.ask())
        wire = Wire(connection)
        head = wire.head(DEADLINE_S)
        assert head is not None
        answer = parse_answer(head)
        assert (answer.status, answer.length, answer.landed) == (200, len(harness.data), 0)
        room = memoryview(bytearray(len(harness.data)))
        for index in range(PARTS):
            harness.land(index)
            length = harness.part.length(index)
            assert wire.receive(room[index * CHUNK : index * CHUNK + length], DEADLINE_S) == length
        assert room == harness.data
    wait_until(lambda: harness.server.sent == len(harness.data), "the count of the last piece, which was sent before")


def test_one_connection_serves_many_requests(harness: PeerServerHarness) -> None:
    harness.land_all()
    with harness.call() as connection:
        wire = Wire(connection)
        for start in (0, 3, PARTS - 1, PARTS):
            connection.sendall(harness.ask(start))
            head = wire.head(DEADLINE_S)
            assert head is not None
            room = memoryview(bytearray(parse_answer(head).length))
            assert wire.receive(room, DEADLINE_S) == len(room)
            assert room == harness.data[start * CHUNK :]


def test_requests_may_come_at_once_or_in_pieces(harness: PeerServerHarness) -> None:
    harness.land_all()
    with harness.call() as connection:
        words = harness.ask(11) + harness.ask(10, "HEAD") + harness.ask(11)
        for place in range(0, len(words), 50):
            connection.sendall(words[place : place + 50])
            time.sleep(0.01)
        connection.shutdown(socket.SHUT_WR)
        said = heard(connection)
    assert said.count(b"HTTP/1.1 200 OK") == 3 and said.count(harness.data[11 * CHUNK :]) == 2


def test_a_look_tells_how_far_it_is(harness: PeerServerHarness) -> None:
    harness.land(0, 1, 2, 5)
    for start, landed in ((0, 3), (2, 3), (3, 3), (5, 6)):
        with harness.call() as connection:
            connection.sendall(harness.ask(start, "HEAD"))
            head = Wire(connection).head(DEADLINE_S)
            assert head is not None and parse_answer(head).landed == landed


@pytest.mark.parametrize("token", ["", "EQ1 w2 9999999999 " + "0" * 64, "nonsense", "EQ1 w2 0 x"])
def test_without_a_token_for_this_very_path_nothing_is_given(harness: PeerServerHarness, token: str) -> None:
    harness.land_all()
    with harness.call() as connection:
        connection.sendall(harness.ask(token=token))
        said = heard(connection)
    assert said.startswith(b"HTTP/1.1 401 ") and len(said) < 200


def test_an_expired_token_opens_nothing(harness: PeerServerHarness) -> None:
    harness.land_all()
    path = path_of(harness.part.key, 0)
    old = PeerAuth(SECRET, lambda: time.time() - 3600).mint("w2", NAME, path)
    with harness.call() as connection:
        connection.sendall(harness.ask(token=old))
        assert status(connection) == 401


def test_a_token_of_another_path_opens_nothing(harness: PeerServerHarness) -> None:
    harness.land_all()
    other = harness.tokens.mint("w2", NAME, path_of(harness.part.key, 1))
    with harness.call() as connection:
        connection.sendall(harness.ask(0, token=other))
        assert status(connection) == 401


@pytest.mark.parametrize(
    "key",
    [
        "../../../../etc/passwd",
        "/etc/passwd",
        "000001.part",
        "lock",
        "weights/../weights",
        "%2e%2e/%2e%2e/etc/passwd",
        "\0",
        "weights/0001/00000007/full/" + "0" * 32 + ".part",
        "é",
    ],
)
def test_a_path_that_names_no_part_finds_nothing_whatever_it_spells(harness: PeerServerHarness, key: str) -> None:
    harness.land_all()
    with harness.call() as connection:
        connection.sendall(harness.ask(key=key))
        assert status(connection) == 404


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /parts/a HTTP/1.1\r\n\r\n",
        b"GET /parts/a?from=-1 HTTP/1.1\r\n\r\n",
        b"GET /parts/a?from=99999999999999999999 HTTP/1.1\r\n\r\n",
        b"GET /parts/a?form=1 HTTP/1.1\r\n\r\n",
        b"GET /parts/a HTTP/1.0\r\n\r\n",
        b"GET /parts/a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /parts/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /parts/a HTTP/1.1\r\nno header\r\n\r\n",
        b"GET /parts/a HTTP/1.1\r\nA: b\r\nA: c\r\n\r\n",
        b"GET /parts/a HTTP/1.1\r\n folded: b\r\n\r\n",
        b"GET  /parts/a  HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /parts/" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"a" * 100_000,
    ],
)
def test_what_is_no_request_of_a_peer_gets_400_and_the_end_of_its_connection(
    harness: PeerServerHarness, words: bytes
) -> None:
    with harness.call() as connection:
        with suppress(OSError):
            connection.sendall(words)
        said = heard(connection)
    assert said == b"" if len(words) > 50_000 and not said else said.startswith(b"HTTP/1.1 400 ")
    with harness.call() as connection:
        connection.sendall(harness.ask(0, "HEAD"))
        assert status(connection) == 200


def test_a_client_that_dawdles_with_its_head_is_left_and_hinders_nobody(
    harness: PeerServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.land_all()
    quick = harness.call()
    monkeypatch.setattr(serving, "STRANGER_S", 0.5)
    slow = [harness.call() for _ in range(10)]
    said: list[int] = []

    def dawdle(connection: socket.socket) -> None:
        count = 0
        with suppress(OSError):
            for byte in harness.ask():
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
                count += 1
        said.append(count)

    threads = [threading.Thread(target=dawdle, args=(connection,), daemon=True) for connection in slow]
    for thread in threads:
        thread.start()
    with quick:
        quick.sendall(harness.ask())
        assert status(quick) == 200
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(said) == 10 and max(said) < len(harness.ask())
    for connection in slow:
        connection.close()


def test_a_stranger_is_left_soon_and_a_peer_only_after_the_idle_time(
    harness: PeerServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.land_all()
    with harness.peer() as peer:
        monkeypatch.setattr(serving, "STRANGER_S", 0.3)
        with harness.call() as stranger:
            assert heard(stranger) == b""
        peer.sendall(harness.ask(0, "HEAD"))
        assert status(peer) == 200


def test_a_silent_peer_is_left_in_the_end(harness: PeerServerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE_S", 0.3)
    monkeypatch.setattr(serving, "HEAD_DEADLINE_S", 0.3)
    harness.land_all()
    with harness.peer() as peer:
        assert heard(peer) == b""


def test_strangers_who_say_nothing_keep_no_peer_out_and_the_oldest_leaves_first(harness: PeerServerHarness) -> None:
    """They come from so many addresses that none has too many connections."""
    harness.land_all()
    strangers = [harness.call(f"127.0.1.{number}") for number in range(1, CONNECTIONS + 1)]
    wait_until(lambda: harness.server.connections == CONNECTIONS, "the server to have taken all connections in")
    with harness.peer() as peer:
        assert heard(strangers[0]) == b""
        assert open_still(strangers[1])
        more = [harness.call(f"127.0.2.{number}") for number in range(1, CONNECTIONS + 1)]
        assert heard(strangers[-1]) == b""
        peer.sendall(harness.ask(0, "HEAD"))
        assert status(peer) == 200, "who has shown a token is never sent away for a stranger"
    for connection in (*strangers, *more):
        connection.close()


def test_strangers_of_one_address_only_push_out_one_another(harness: PeerServerHarness) -> None:
    with harness.call("127.0.1.1") as other:
        wait_until(lambda: harness.server.connections == 1, "the first connection")
        strangers = [harness.call("127.0.1.2") for _ in range(STRANGERS_PER_ADDRESS + 1)]
        assert heard(strangers[0]) == b""
        assert open_still(other) and open_still(strangers[1])
    for connection in strangers:
        connection.close()


def open_still(connection: socket.socket) -> bool:
    """Returns whether the server has not ended this connection so far."""
    return not Wire(connection).ended()


def test_beyond_so_many_peers_the_next_is_sent_away_at_once(harness: PeerServerHarness) -> None:
    harness.land_all()
    held = [harness.peer() for _ in range(CONNECTIONS)]
    with harness.call() as connection:
        assert b"HTTP/1.1 503 " in heard(connection)
    for connection in held:
        connection.close()


def test_beyond_so_many_streams_the_answer_is_503_and_when_to_come_again(tmp_path: Path) -> None:
    harness = PeerServerHarness(tmp_path, streams=2)
    try:
        harness.file.expect(True)
        busy = [harness.call() for _ in range(2)]
        for connection in busy:
            connection.sendall(harness.ask())
            assert status(connection) == 200
        with harness.call() as connection:
            connection.sendall(harness.ask())
            head = Wire(connection).head(DEADLINE_S)
            assert head is not None and re.search(rb"503.*\r\nRetry-After: 1", head, re.DOTALL)
            connection.sendall(harness.ask(0, "HEAD"))
            assert status(connection) == 200
        for connection in busy:
            connection.close()
        wait_until(lambda: _free(harness), "a free place")
    finally:
        harness.close()


def _free(harness: PeerServerHarness) -> bool:
    with harness.call() as connection:
        connection.sendall(harness.ask())
        return status(connection) == 200


def test_a_stream_ends_when_nobody_fetches_the_rest_any_more(harness: PeerServerHarness) -> None:
    harness.land(0)
    harness.file.expect(True)
    with harness.call() as connection:
        connection.sendall(harness.ask())
        wire = Wire(connection)
        head = wire.head(DEADLINE_S)
        assert head is not None and parse_answer(head).length == len(harness.data)
        room = memoryview(bytearray(CHUNK))
        assert wire.receive(room, DEADLINE_S) == CHUNK and room == harness.data[:CHUNK]
        harness.file.expect(False)
        assert heard(connection) == b""


def test_uploads_stay_below_their_cap(tmp_path: Path) -> None:
    harness = PeerServerHarness(tmp_path, upload_mbit=1.0)
    try:
        monkey = serving.BURST_BYTES
        serving.BURST_BYTES = CHUNK
        harness.land_all()
        with harness.call() as connection:
            began = time.monotonic()
            connection.sendall(harness.ask())
            exactly(connection, len(harness.data))
            rate = 8e-6 * (len(harness.data) - 2 * CHUNK) / (time.monotonic() - began)
        assert rate <= 1.0
    finally:
        serving.BURST_BYTES = monkey
        harness.close()


def test_closing_the_server_ends_its_streams_at_once(harness: PeerServerHarness) -> None:
    harness.file.expect(True)
    with harness.call() as connection:
        connection.sendall(harness.ask())
        assert status(connection) == 200
        harness.server.close()
        heard(connection)
