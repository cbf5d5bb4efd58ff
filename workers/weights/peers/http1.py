"""The subset of HTTP/1.1 that peers speak. Deadlines cover whole messages, so that a trickle of bytes extends none.

    EQ1 {expires} {mark}               the server's greeting (`peer_auth`), its first words on every connection
    GET /parts/{key}?from={chunk}      the part's bytes from that chunk on, each as soon as the server has it
    HEAD /parts/{key}?from={chunk}     X-Landed: the first chunk from there on that the server does not have yet

- Every request carries `Authorization: <token>` (`peer_auth`). Answers: 200 with Content-Length and X-Landed, 400, 401,
  404, 503 with Retry-After. Connections are kept; requests have no body.
- Sockets stay blocking, with the kernel's own timeouts: a chunk is received or sent in one call, without the GIL, so
  that transfers and generation in the same process do not disturb one another.
"""

import os
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote, unquote

from echo_queue.records.foreign_numbers import NoNumber, whole

HEAD_MAX_BYTES = 4096
PREFIX = "/parts/"
LINE_END, HEAD_END = b"\r\n", b"\r\n\r\n"
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}
LEAST_S = 0.001


class Garbled(Exception):
    """The bytes received violate the peers' protocol."""


class Silent(Exception):
    """The message was not received, or not taken, in time."""


class Gone(Exception):
    """The other side has ended the connection."""


@dataclass(frozen=True)
class Request:
    """A request. `path`: as it was sent, which the token covers; `key` and `start` (a chunk) are parsed from it."""

    method: str
    path: str
    key: str
    start: int
    token: str


@dataclass(frozen=True)
class Answer:
    """An answer. `length`: bytes of the body. `landed`: X-Landed. `retry_s`: the wait that a busy server asks for."""

    status: int
    length: int
    landed: int = 0
    retry_s: float = 0.0


def path_of(key: str, start: int) -> str:
    return f"{PREFIX}{quote(key, safe='/')}?from={start}"


def request_head(method: str, path: str, host: str, token: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {token}\r\n\r\n".encode("ascii")


def parse_request(head: bytes) -> Request:
    """Parses a request. Raises `Garbled` unless a peer can have sent it. `head` ends before the empty line."""
    line, fields = _fields(head)
    words = line.split(" ")
    if len(words) != 3 or words[0] not in ("GET", "HEAD") or words[2] != "HTTP/1.1":
        raise Garbled("no request of a peer")
    if fields.get("content-length", "0") != "0" or "transfer-encoding" in fields:
        raise Garbled("a request with a body")
    method, path, _ = words
    place, question, query = path.partition("?")
    name, _, number = query.partition("=")
    if not place.startswith(PREFIX) or (question and name != "from"):
        raise Garbled("no path of a part")
    return Request(
        method, path, unquote(place[len(PREFIX) :]), _count(number) if question else 0, fields.get("authorization", "")
    )


def answer_head(status: int, length: int = 0, **fields: int) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Length: {length}"]
    lines += [f"{name.replace('_', '-').title()}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def parse_answer(head: bytes) -> Answer:
    """Parses an answer. Raises `Garbled` unless a peer server can have sent it."""
    line, fields = _fields(head)
    words = line.split(" ", 2)
    if len(words) < 2 or words[0] != "HTTP/1.1" or "transfer-encoding" in fields:
        raise Garbled("no answer of a peer")
    return Answer(
        status=_count(words[1]),
        length=_count(fields.get("content-length", "")),
        landed=_count(fields.get("x-landed", "0")),
        retry_s=float(_count(fields.get("retry-after", "0"))),
    )


def _fields(head: bytes) -> tuple[str, dict[str, str]]:
    """Returns the first line, and the headers by their lower-case names; each may occur once."""
    try:
        line, *rest = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise Garbled("bytes that are no ASCII") from None
    fields: dict[str, str] = {}
    for one in rest:
        name, colon, value = one.partition(":")
        if not colon or not name or name != name.strip() or name.lower() in fields:
            raise Garbled("a line that is no header, or one twice")
        fields[name.lower()] = value.strip(" \t")
    return line, fields


def _count(text: str) -> int:
    try:
        return whole(text)
    except NoNumber as error:
        raise Garbled(str(error)) from None


class Wire:
    """One connection. Bytes read beyond a head are kept for the next read."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._timeouts: dict[int, float] = {}

    def head(self, deadline_s: float, idle_s: float = 0.0) -> bytes | None:
        """Reads the next head, without its empty line. None: the connection ended before the head began.

        `deadline_s` counts from its first byte, for which `idle_s` is waited (`deadline_s`, if that is longer).
        """
        give_up = time.monotonic() + max(deadline_s, idle_s)
        begun = bool(self._rest)
        while HEAD_END not in self._rest:
            if len(self._rest) > HEAD_MAX_BYTES:
                raise Garbled(f"a head of more than {HEAD_MAX_BYTES} bytes")
            self._limit(socket.SO_RCVTIMEO, give_up - time.monotonic())
            try:
                more = self.connection.recv(HEAD_MAX_BYTES)
            except BlockingIOError:
                raise Silent("no whole head came in time") from None
            except OSError:
                more = b""
            if not more:
                if self._rest:
                    raise Gone("in the middle of a head")
                return None
            if not begun:
                begun, give_up = True, time.monotonic() + deadline_s
            self._rest += more
        head, _, self._rest = self._rest.partition(HEAD_END)
        if len(head) > HEAD_MAX_BYTES:
            raise Garbled(f"a head of more than {HEAD_MAX_BYTES} bytes")
        return head

    def receive(self, view: memoryview, deadline_s: float) -> int:
        """Fills `view`; returns the number of bytes received, fewer at the deadline. Raises `Gone` at the end."""
        got = min(len(view), len(self._rest))
        if got:
            view[:got], self._rest = self._rest[:got], self._rest[got:]
        give_up = time.monotonic() + deadline_s
        while got < len(view):
            left_s = give_up - time.monotonic()
            if left_s <= 0:
                break
            # The kernel's timeout is for all of what MSG_WAITALL waits for, not for each packet.
            self._limit(socket.SO_RCVTIMEO, left_s)
            try:
                count = self.connection.recv_into(view[got:], len(view) - got, socket.MSG_WAITALL)
            except BlockingIOError:
                break
            except OSError as error:
                raise Gone(str(error)) from None
            if count == 0:
                raise Gone("before its end")
            got += count
        return got

    def send(self, data: bytes, deadline_s: float, more: bool = False) -> None:
        """Sends all of `data`, a head. `more`: the kernel may hold it back for the bytes that follow."""
        self._limit(socket.SO_SNDTIMEO, deadline_s)
        try:
            if self.connection.send(data, socket.MSG_MORE if more else 0) < len(data):
                raise Silent("a head was not taken in time")
        except BlockingIOError:
            raise Silent("a head was not taken in time") from None
        except OSError as error:
            raise Gone(str(error)) from None

    def send_file(self, file: int, start: int, count: int, deadline_s: float) -> None:
        """Sends bytes `start … start + count − 1` of an open file."""
        give_up = time.monotonic() + deadline_s
        end = start + count
        while start < end:
            left_s = give_up - time.monotonic()
            if left_s <= 0:
                raise Silent(f"{end - start} bytes were not taken in time")
            self._limit(socket.SO_SNDTIMEO, left_s)
            try:
                sent = os.sendfile(self.connection.fileno(), file, start, end - start)
            except BlockingIOError:
                continue
            except OSError as error:
                raise Gone(str(error)) from None
            if sent == 0:
                raise Gone("the file is shorter than it was")
            start += sent

    def ended(self) -> bool:
        """Returns whether the other side has closed the connection; never waits."""
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def shut(self) -> None:
        """Wakes the thread that waits for this connection, which then closes it."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.connection.close()

    def _limit(self, option: int, seconds: float) -> None:
        """Sets a timeout of the socket. A slightly longer one does no harm: most calls leave the kernel's as it is."""
        known = self._timeouts.get(option, 0.0)
        seconds = max(seconds, LEAST_S)
        if not seconds <= known <= 1.1 * seconds + 0.05:
            whole = int(seconds)
            value = struct.pack("ll", whole, int((seconds - whole) * 1e6))
            self.connection.setsockopt(socket.SOL_SOCKET, option, value)
            self._timeouts[option] = seconds
