"""A peer as a source: another worker, which is asked for a part over HTTP and sends its chunks in order.

- Nothing is sent before the server has proved that it is the peer that it is said to be.
- No peer is trusted: a chunk counts when `PartFile.write` has compared it, and any other input (a wrong length, fewer
  bytes, no HTTP) ends the read with a `SourceFailed` that gives the reason.
- A silent peer is asked on another connection how far it is. One that answers is waiting itself, and may go on waiting;
  one that does not answer is dead. The deadline for both follows the rate at which its chunks came (`silence_s`).
"""

import socket
import time
from collections.abc import Iterator

from echo_queue.queue import Upstream
from workers.weights.cache.part_file import PartFile
from workers.weights.cache.sources import BadSource, SourceFailed
from workers.weights.peers.http1 import Answer, Garbled, Gone, Silent, Wire, parse_answer, path_of, request_head
from workers.weights.peers.peer_addresses import PeerAddresses, Refused
from workers.weights.peers.peer_auth import PeerAuth
from workers.weights.peers.peer_auth import Refused as NoPeer
from workers.weights.peers.source_choice import silence_s

PEER = "peer"
CONNECT_S = 2.0
FADE = 0.75
"""The share that the past keeps in a peer's pace when a further chunk has come."""


class UnreachablePeer(SourceFailed):
    """No connection to the peer could be made, or whoever answers at its address is not that peer."""


class SilentPeer(SourceFailed):
    """The peer does not answer in time: it is dead, frozen or cut off, or its machine is too busy."""


class DryPeer(SourceFailed):
    """The peer answers, but gives nothing."""


class BusyPeer(SourceFailed):
    """The peer is busy. `retry_s`: the wait that it asked for; 0 if it named none."""

    def __init__(self, why: str, retry_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_s = retry_s


class PeerSource:
    """One upstream of the worker `worker`. It keeps its connections; any thread may use it."""

    kind = PEER

    def __init__(
        self, upstream: Upstream, worker: str, tokens: PeerAuth, addresses: PeerAddresses, deadline_s: float
    ) -> None:
        self.name = upstream.worker
        self._address = upstream.address
        self._worker = worker
        self._tokens = tokens
        self._addresses = addresses
        self._deadline_s = deadline_s
        self._idle: list[Wire] = []
        self._pace = 0.0
        """Seconds for each byte, the waits for its own source included; 0: not known."""

    def chunks(self, file: PartFile) -> Iterator[int]:
        part, index = file.part, file.next
        room = memoryview(bytearray(min(part.chunk_bytes, part.size)))
        wire: Wire | None
        wire, answer = self._ask("GET", file, self._silence_s(file))
        asked_s = time.monotonic()
        try:
            if answer.length != part.size - part.start(index):
                raise BadSource(f"{self.name} announced {answer.length} bytes from chunk {index} on")
            while index < len(part.chunks):
                chunk = room[: part.length(index)]
                yield from self._receive(wire, file, index, chunk)
                if not file.write(index, chunk):
                    raise BadSource(f"{self.name} served a bad chunk: {index} of {part.key}")
                now = time.monotonic()
                self._learn(part.length(index), now - asked_s)
                asked_s = now
                yield part.length(index)
                index += 1
            self._idle.append(wire)
            wire = None
        except Gone as error:
            raise SourceFailed(f"{self.name} went away: {error}") from None
        finally:
            if wire is not None:
                wire.close()

    def landed(self, file: PartFile) -> int | None:
        """Asks for the first chunk from `file.next` on that the peer lacks; None if it does not answer."""
        try:
            wire, answer = self._ask("HEAD", file, self._silence_s(file) / 2, fresh=True)
        except SourceFailed:
            return None
        wire.close()
        return answer.landed

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _receive(self, wire: Wire, file: PartFile, index: int, rest: memoryview) -> Iterator[int]:
        """Fills `rest`. A peer that has the chunk must deliver it within a deadline; one that waits for it may wait."""
        pause_s = self._silence_s(file) / 4
        overdue_s = 0.0
        while (got := wire.receive(rest, pause_s)) < len(rest):
            rest = rest[got:]
            has = self.landed(file)
            if has is None:
                raise SilentPeer(f"{self.name} is silent")
            overdue_s = overdue_s + pause_s if has > index else 0.0
            if overdue_s >= self._deadline_s:
                raise DryPeer(f"{self.name} does not send what it has")
            yield 0
            pause_s = min(2 * pause_s, self._deadline_s / 4)

    def _silence_s(self, file: PartFile) -> float:
        return silence_s(self._pace * file.part.chunk_bytes, self._deadline_s)

    def _learn(self, length: int, took_s: float) -> None:
        pace = took_s / length
        self._pace = FADE * self._pace + (1 - FADE) * pace if self._pace else pace

    def _ask(self, method: str, file: PartFile, deadline_s: float, fresh: bool = False) -> tuple[Wire, Answer]:
        path = path_of(file.part.key, file.next)
        give_up = time.monotonic() + deadline_s
        wire: Wire | None = None
        while True:
            known = None if fresh or wire is not None else self._kept()
            wire = known or self._connect(max(0.0, give_up - time.monotonic()))
            try:
                token = self._tokens.mint(self._worker, self.name, path)
                wire.send(request_head(method, path, self._address, token), deadline_s)
                answer = wire.head(max(0.0, give_up - time.monotonic()))
                if answer is not None:
                    return wire, self._good(parse_answer(answer))
                raise Gone("without an answer")
            except Gone as error:
                wire.close()
                if known is None:  # the other side may have closed a connection that was idle
                    raise SourceFailed(f"{self.name} went away: {error}") from None
            except Silent:
                wire.close()
                raise SilentPeer(f"{self.name} did not answer within {deadline_s:g} s") from None
            except (Garbled, UnicodeEncodeError) as error:  # a peer may name itself as it likes
                wire.close()
                raise BadSource(f"{self.name} answered no HTTP of ours: {error}") from None
            except SourceFailed:
                wire.close()
                raise

    def _kept(self) -> Wire | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _good(self, answer: Answer) -> Answer:
        if answer.status == 503:
            raise BusyPeer(f"{self.name} serves as many peers as it can", answer.retry_s)
        if answer.status != 200:
            raise SourceFailed(f"{self.name} answered {answer.status}")
        return answer

    def _connect(self, deadline_s: float) -> Wire:
        """Connects, and waits for the peer's greeting."""
        give_up = time.monotonic() + deadline_s
        try:
            place = self._addresses.place_of(self._address)
            wire = Wire(socket.create_connection(place, timeout=min(CONNECT_S, deadline_s)))
        except (OSError, Refused) as error:
            raise UnreachablePeer(f"{self.name} cannot be reached at {self._address}: {error}") from None
        try:
            self._tokens.check_greeting(wire.head(give_up - time.monotonic()) or b"", self.name)
        except Silent:
            wire.close()
            raise SilentPeer(f"{self.name} says nothing at {self._address}") from None
        except (Garbled, Gone, NoPeer):
            wire.close()
            raise UnreachablePeer(f"{self._address} is not the peer {self.name}") from None
        return wire
