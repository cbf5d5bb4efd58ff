"""The weight transports of workers, around a real Redis and a real store, and servers that misbehave as peers."""

import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from echo_queue.config import Weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import Heartbeat, Peer
from echo_queue.records import Version
from echo_queue.weights.manifest import Part, Route, part_key
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES
from tests.waiting import wait_until
from workers.weights.cache.part_cache import PartCache
from workers.weights.folder import FolderTransport, SharedFolder
from workers.weights.peers.exchange import PeerExchange
from workers.weights.peers.peer_auth import PeerAuth

CHUNK = 16 << 10
SECRET = b"shared by the run's workers"
VERSION = Version(1, 7)
DEADLINE_S = 120.0
HASTY_S = 0.6
"""The deadline of a chunk where a peer says nothing: nobody else is left at it."""


def part_of(data: bytes, chunk_bytes: int = CHUNK) -> Part:
    view = memoryview(data)
    digests = tuple(blake3(view[at : at + chunk_bytes]).hexdigest() for at in range(0, len(data), chunk_bytes))
    return Part(part_key(VERSION, None, digests), len(data), chunk_bytes, digests)


def route_of(*datas: bytes, chunk_bytes: int = CHUNK) -> Route:
    return Route("run", VERSION, None, "0" * 64, None, tuple(part_of(data, chunk_bytes) for data in datas))


def random_parts(chunks: int, parts: int = 1) -> list[bytes]:
    """Makes random parts; the last chunk of each is shorter."""
    return [os.urandom(chunks * CHUNK - 100) for _ in range(parts)]


class Member:
    """A worker that fetches and serves; its one heartbeat is valid for the whole test."""

    def __init__(self, peer_harness: "PeerHarness", name: str, *, secret: bytes = SECRET, **settings: Any) -> None:
        self.name = name
        peer_harness.heartbeat(name)
        chosen = {"chunk_deadline_s": DEADLINE_S} | settings
        self.part_cache = PartCache(peer_harness.folder / name, 1 << 30)
        weights = Weights(**chosen)
        self.exchange: Any
        """The worker's transport."""
        if weights.transport == "folder":
            shared = SharedFolder(peer_harness.folder.parent / "shared", weights.folder_max_bytes)
            self.exchange = FolderTransport(shared, peer_harness.store, self.part_cache, weights.chunk_deadline_s)
        else:
            self.exchange = PeerExchange(
                peer_harness.queue, peer_harness.store, self.part_cache, name, weights, secret=secret
            )

    def fetch(self, route: Route, deadline_s: float = DEADLINE_S) -> tuple[int, int]:
        """Fetches a route; returns the bytes from the store and from peers."""
        fetched = self.exchange.fetch_route(route, deadline_s)
        return fetched.store_bytes, fetched.peer_bytes

    def holds(self, route: Route, datas: Sequence[bytes]) -> bool:
        return all(self.part_cache.open(part).memory() == data for part, data in zip(route.parts, datas, strict=True))

    def close(self) -> None:
        self.exchange.close()
        self.part_cache.close()


class PeerHarness:
    def __init__(self, queue: Clients, store: ObjectStore, folder: Path, configure: bool = True) -> None:
        self.queue, self.store, self.folder = queue, store, folder
        self._members: list[Member] = []
        self._liars: list[Liar] = []
        if configure:
            queue.configure(RULES)

    def publish(self, *datas: bytes) -> Route:
        route = route_of(*datas)
        for part, data in zip(route.parts, datas, strict=True):
            self.store.put(part.key, data)
        return route

    def member(self, name: str, *, secret: bytes = SECRET, **settings: Any) -> Member:
        self._members.append(Member(self, name, secret=secret, **settings))
        return self._members[-1]

    def liar(self, name: str, route: Route, converse: "Conversation") -> "Liar":
        """Adds a server to the chain that answers as `converse` does."""
        liar = Liar(name, converse)
        self._liars.append(liar)
        self.heartbeat(name)
        self.queue.join(Peer(name, "default", liar.address), route.name)
        return liar

    def await_joined(self, name: str, route: Route) -> None:
        chain = f"{self.queue.keys.prefix}chain:default:{route.name}"
        wait_until(lambda: name.encode() in self.queue.client.zrange(chain, 0, -1), f"{name} in the chain")

    def heartbeat(self, name: str) -> None:
        self.queue.heartbeat(name, Heartbeat("engine", VERSION, "idle"), 60.0)

    def close(self) -> None:
        for member in self._members:
            member.close()
        for liar in self._liars:
            liar.close()


def hold_up(store: ObjectStore, at_byte: int) -> None:
    """Makes every read of the store stop for good once `at_byte` bytes were read of it."""
    stream, given = store.stream, itertools.count(CHUNK, CHUNK)

    def held(key: str, start: int = 0, piece_bytes: int = CHUNK) -> Iterator[bytes]:
        for piece in stream(key, start, CHUNK):
            if next(given) > at_byte:
                threading.Event().wait()
            yield piece

    store.stream = held  # type: ignore[method-assign]


Conversation = Callable[[socket.socket, bytes], None]
"""Answers a request, given the connection and the request's head; the connection is closed afterwards."""


class Liar:
    """A server that greets as the worker `name`, and then answers as `converse` does."""

    def __init__(self, name: str, converse: Conversation) -> None:
        self._greeting = PeerAuth(SECRET).greeting(name)
        self.accepted = 0
        self.asked: list[bytes] = []
        """The heads of all requests."""
        self._converse = converse
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self._open: list[socket.socket] = []
        self._closed = False
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends all conversations; afterwards no connection to the address can be made."""
        self._closed = True
        self._thread.join(DEADLINE_S)
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            with suppress(TimeoutError):
                connection, _ = self._listener.accept()
                self.accepted += 1
                self._open.append(connection)
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()
        self._listener.close()

    def _talk(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(self._greeting)
            for head in heads(connection):
                self.asked.append(head)
                self._converse(connection, head)
                return


def heads(connection: socket.socket) -> Iterator[bytes]:
    rest = b""
    while data := connection.recv(4096):
        rest += data
        while b"\r\n\r\n" in rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            yield head
