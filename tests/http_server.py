"""An HTTP server of a test's own, in threads of this process: each request is one call of a function."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

ENDED_S = 120.0


class Asked(NamedTuple):
    """A request. The names of its headers are in lower case; of each word of the query it has the first value."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    raw_query: str = ""


class Reply(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


Answer = Callable[[Asked], Reply]


class HttpServer:
    """Answers on loopback until it is closed. `answer` is called in the thread of its connection."""

    def __init__(self, answer: Answer) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(answer))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(ENDED_S)


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Yields the address of a server that gives these answers."""
    server = HttpServer(answer)
    try:
        yield server.url
    finally:
        server.close()


def _handler(answer: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer is one write

        def _serve(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", "0")))
            reply = answer(Asked(self.command, url.path, query, headers, body, url.query))
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
