"""HTTP/1.1 as an S3 client and server speak it, and what the server may answer that is no success.

A message has its length in its headers, comes in chunks, or ends with its connection. A client that asks for leave
to send a body (`Expect: 100-continue`) gets it from the proxy, so that requests are always whole.
"""

from tests.faults.proxy.proxy import Fault, Request, Then

BODILESS = (204, 304)
Headers = dict[str, str]


class Http:
    """The framing of HTTP/1.1."""

    def request(self, data: bytearray) -> Request | None:
        head = _head(data)
        if head is None:
            return None
        line, headers, begin = head
        end = _body_end(data, begin, headers)
        if end is None:
            return None
        method, path, _ = line.split(" ", 2)
        return Request(method, path, _without_expect(data, begin) + bytes(data[begin:end]), end)

    def reply(self, data: bytearray, to: Request) -> int | None:
        head = _head(data)
        if head is None:
            return None
        line, headers, begin = head
        status = int(line.split(" ", 2)[1])
        if to.name == "HEAD" or status in BODILESS:
            return begin
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return None  # its connection ends it
        return _body_end(data, begin, headers)

    def leave(self, data: bytearray) -> bytes:
        head = _head(data)
        waits = head is not None and head[1].get("expect", "").lower() == "100-continue" and len(data) == head[2]
        return b"HTTP/1.1 100 Continue\r\n\r\n" if waits else b""


def _head(data: bytearray) -> tuple[str, Headers, int] | None:
    """First line, headers by their names in small letters, and where the body begins."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = bytes(data[:end]).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.lower(): value.strip() for name, _, value in pairs}, end + 4


def _body_end(data: bytearray, begin: int, headers: Headers) -> int | None:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunks_end(data, begin)
    end = begin + int(headers.get("content-length", 0))
    return end if end <= len(data) else None


def _chunks_end(data: bytearray, at: int) -> int | None:
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(data[at:line_end].split(b";")[0], 16)
        if size == 0:
            end = line_end if data[line_end : line_end + 4] == b"\r\n\r\n" else data.find(b"\r\n\r\n", line_end)
            return None if end < 0 else end + 4
        at = line_end + 2 + size + 2


def _without_expect(data: bytearray, begin: int) -> bytes:
    lines = bytes(data[: begin - 4]).split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(b"expect:")) + b"\r\n\r\n"


def answered(status: int, code: str, forward: bool = False) -> Fault:
    """The server answers with this error; with `forward` although it did what was asked."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>a fault for a test</Message></Error>'.encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return Fault(f"{status}{' after' if forward else ''}", forward=forward, answer=head.encode() + body)


def _spoil(reply: bytes) -> bytes:
    """Another last byte of the body, if it has one."""
    return reply if reply.endswith(b"\r\n\r\n") else reply[:-1] + bytes([reply[-1] ^ 1])


def _shorten(reply: bytes) -> bytes:
    """Half of the body under the length of all of it."""
    begin = reply.find(b"\r\n\r\n") + 4
    return reply[: begin + (len(reply) - begin) // 2]


INTERNAL_ERROR = answered(500, "InternalError")
INTERNAL_ERROR_AFTER = answered(500, "InternalError", forward=True)
SLOW_DOWN = answered(503, "SlowDown")
SLOW_DOWN_AFTER = answered(503, "SlowDown", forward=True)
CONFLICT = answered(409, "ConditionalRequestConflict")
EXISTS = answered(412, "PreconditionFailed")
SHORT_BODY = Fault("short body", alter=_shorten, then=Then.closes)
WRONG_BYTES = Fault("wrong bytes", alter=_spoil)

FAILURES = (INTERNAL_ERROR, INTERNAL_ERROR_AFTER, SLOW_DOWN, SLOW_DOWN_AFTER, CONFLICT, SHORT_BODY)


def conditional(request: Request) -> bool:
    """A put that must not replace anything."""
    return b"if-none-match" in request.raw[: request.raw.find(b"\r\n\r\n")].lower()


def a_read(request: Request) -> bool:
    """Returns whether the request reads an object; a listing is none."""
    return request.name == "GET" and "?" not in request.about


def with_digest(request: Request) -> bool:
    """Returns whether it reads an object of known digest: everything but the manifests that are found by listing."""
    found_by_listing = request.about.endswith("/index.json") or "/checkpoints/" in request.about
    return a_read(request) and (not found_by_listing or request.about.endswith(".safetensors"))
