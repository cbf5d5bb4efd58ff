"""Where chunks come from: another worker, or the store. Each lands them in order, from the first that is missing on.

- A source is believed in nothing: a chunk counts when `PartFile.write` has compared it, and what else comes (a length
  that cannot be, fewer bytes, no HTTP) ends the source's turn with a `Left` that says why.
- A peer that is silent is asked on another connection how far it is: one that answers is waiting itself, and may go on
  waiting; one that does not is dead, and has cost one deadline.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from echo_queue.queue import Upstream
from echo_queue.storage.object_store import ObjectStore, ShortObject, Unreachable
from workers.weights.peers.access import Tokens
from workers.weights.peers.http1 import Answer, Garbled, Gone, Silent, Wire, parse_answer, path_of, request_head
from workers.weights.peers.part_cache import PartFile

CONNECT_S = 2.0
STORE = "store"


class Left(Exception):
    """Why a source is not asked further."""

    bad = False
    """Whether it served what is not what was published, or no HTTP at all."""
    unreachable = False
    """Whether it could not even be connected to."""


class Lied(Left):
    bad = True


class Unreached(Left):
    unreachable = True


class Busy(Left):
    """It may have time a little later: after `retry_s`, if it said so; else 0."""

    def __init__(self, why: str, retry_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_s = retry_s


class Source(Protocol):
    name: str

    def chunks(self, file: PartFile) -> Iterator[int]:
        """Lands chunks until the part is whole; yields the bytes of each.

        Yields 0 each time that nothing came for half a deadline and the source is known to live. Raises `Left`.
        """

    def landed(self, file: PartFile) -> int | None:
        """The first chunk from `file.next` on that it does not have; None if it does not answer."""


class Peer:
    """One upstream as `worker` sees it. Connections are kept; for any number of threads."""

    def __init__(self, upstream: Upstream, worker: str, tokens: Tokens, deadline_s: float) -> None:
        self.name = upstream.worker
        self._address = upstream.address
        self._worker = worker
        self._tokens = tokens
        self._deadline_s = deadline_s
        self._idle: list[Wire] = []

    def chunks(self, file: PartFile) -> Iterator[int]:
        part, index = file.part, file.next
        room = memoryview(bytearray(part.chunk_bytes))
        wire: Wire | None
        wire, answer = self._ask("GET", file, self._deadline_s)
        try:
            if answer.length != part.size - part.start(index):
                raise Lied(f"{self.name} announced {answer.length} bytes from chunk {index} on")
            while index < len(part.chunks):
                chunk = room[: part.length(index)]
                yield from self._receive(wire, file, index, chunk)
                if not file.write(index, chunk):
                    raise Lied(f"{self.name} served a bad chunk: {index} of {part.key}")
                yield part.length(index)
                index += 1
            self._idle.append(wire)
            wire = None
        except Gone as error:
            raise Left(f"{self.name} went away: {error}") from None
        finally:
            if wire is not None:
                wire.close()

    def landed(self, file: PartFile) -> int | None:
        try:
            wire, answer = self._ask("HEAD", file, self._deadline_s / 2, fresh=True)
        except Left:
            return None
        wire.close()
        return answer.landed

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _receive(self, wire: Wire, file: PartFile, index: int, rest: memoryview) -> Iterator[int]:
        """Fills `rest`. A peer that has the chunk must deliver it within a deadline; one that waits may wait."""
        half_s = self._deadline_s / 2
        overdue_s = 0.0
        while (got := wire.receive(rest, half_s)) < len(rest):
            rest = rest[got:]
            has = self.landed(file)
            overdue_s = overdue_s + half_s if has is not None and has > index else 0.0
            if has is None or overdue_s >= self._deadline_s:
                raise Left(f"{self.name} is silent")
            yield 0

    def _ask(self, method: str, file: PartFile, deadline_s: float, fresh: bool = False) -> tuple[Wire, Answer]:
        path = path_of(file.part.key, file.next)
        head = request_head(method, path, self._address, self._tokens.mint(self._worker, self.name, path))
        give_up = time.monotonic() + deadline_s
        wire: Wire | None = None
        while True:
            known = None if fresh or wire is not None else self._kept()
            wire = known or self._connect(deadline_s)
            try:
                wire.send(head, deadline_s)
                answer = wire.head(max(0.0, give_up - time.monotonic()))
                if answer is not None:
                    return wire, self._good(parse_answer(answer))
                raise Gone("without an answer")
            except Gone as error:
                wire.close()
                if known is None:  # the other side may have closed a connection that was idle
                    raise Left(f"{self.name} went away: {error}") from None
            except Silent:
                wire.close()
                raise Left(f"{self.name} did not answer within {deadline_s:g} s") from None
            except Garbled as error:
                wire.close()
                raise Lied(f"{self.name} answered no HTTP of ours: {error}") from None
            except Left:
                wire.close()
                raise

    def _kept(self) -> Wire | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _good(self, answer: Answer) -> Answer:
        if answer.status == 503:
            raise Busy(f"{self.name} feeds as many as it can", answer.retry_s)
        if answer.status != 200:
            raise Left(f"{self.name} answered {answer.status}")
        return answer

    def _connect(self, deadline_s: float) -> Wire:
        host, _, port = self._address.rpartition(":")
        try:
            place = (host.strip("[]"), int(port))
            return Wire(socket.create_connection(place, timeout=min(CONNECT_S, deadline_s)))
        except (OSError, ValueError, OverflowError) as error:
            raise Unreached(f"{self.name} cannot be reached at {self._address}: {error}") from None


class Store:
    """The store itself, when no peer is left or this worker is the first of its region."""

    name = STORE

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def chunks(self, file: PartFile) -> Iterator[int]:
        part, index = file.part, file.next
        pieces = self._store.stream(part.key, part.start(index), part.chunk_bytes)
        try:
            for piece in pieces:
                if index == len(part.chunks) or not file.write(index, piece):
                    raise Lied(f"the store's bytes are not those that were published: chunk {index} of {part.key}")
                index += 1
                yield len(piece)
            if index < len(part.chunks):
                raise Lied(f"the store's object {part.key} ends at chunk {index}")
        except ShortObject as error:
            raise Lied(str(error)) from None
        except Unreachable as error:
            raise Left(str(error)) from None
        finally:
            with suppress(AttributeError):
                pieces.close()  # type: ignore[attr-defined]

    def landed(self, file: PartFile) -> int | None:
        return len(file.part.chunks)
