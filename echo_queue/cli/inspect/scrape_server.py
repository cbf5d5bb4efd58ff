"""Serves a run's figures over HTTP: `GET /metrics`, with the token if there is one; any other path is 404.

A connection that is silent for `SILENT_S` is closed.
"""

import errno
import hmac
import ipaddress
import logging
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import NamedTuple

from echo_queue.connections.secrets import METRICS_TOKEN
from echo_queue.errors import ConfigError, Problem, ServiceError
from echo_queue.reporting.figures.exposition import CONTENT_TYPE

PATH, LOOPBACK = "/metrics", "127.0.0.1"
SILENT_S = 10.0
TEXT = "text/plain; charset=utf-8"
ENDED_S = 5.0
LOG = logging.getLogger(__name__)
WHERE = "--listen"


class Address(NamedTuple):
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Returns whether only this machine reaches it; a name that is not `localhost` may mean any address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(text: str) -> Address:
    """Reads HOST:PORT, :PORT or PORT; without a host it is this machine's loopback. Raises `ConfigError`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(Problem(WHERE, f"{text} names no port", "write HOST:PORT, such as 127.0.0.1:9477"))
    return Address(host or LOOPBACK, int(port))


def require_token(address: Address, token: str | None) -> None:
    """Raises `ConfigError` for an address that other machines may reach, if there is no token."""
    if not token and (token is not None or not address.loopback):
        what = f"{address} may be reached from other machines, and {METRICS_TOKEN} is not set"
        fix = f"set {METRICS_TOKEN}, or {METRICS_TOKEN}_FILE to a file that has the token, or listen on {LOOPBACK}"
        raise ConfigError(Problem(WHERE, f"{METRICS_TOKEN} is empty" if token is not None else what, fix))


class ScrapeServer:
    """Answers on `address` in threads of its own until it is closed. `scrape` returns the text of the figures.

    Raises `ServiceError` if the address cannot be had.
    """

    def __init__(self, address: Address, token: str | None, scrape: Callable[[], bytes]) -> None:
        try:
            self._server = _Server(address, token, scrape)
        except OSError as error:
            raise ServiceError(_problem(address, error)) from None
        self.address = Address(address.host, self._server.socket.getsockname()[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="scrape server", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(ENDED_S)


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: Address, token: str | None, scrape: Callable[[], bytes]) -> None:
        self.scrape = scrape
        self._shown = f"Bearer {token}".encode() if token else b""
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), Handler)

    def admits(self, shown: str) -> bool:
        """Returns whether whoever shows this as its `Authorization` may see the figures."""
        return not self._shown or hmac.compare_digest(shown.encode("latin-1", "replace"), self._shown)

    def handle_error(self, request: object, client_address: object) -> None:
        """Logs an error of ours; a client that goes away in the middle is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            LOG.exception("a scrape of %s failed", client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = SILENT_S
    wbufsize = -1  # an answer is one write

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(404, f"{PATH} has the figures\n".encode())
        elif not self.server.admits(self.headers.get("Authorization", "")):
            self._answer(401, b"the token is missing or wrong\n", **{"WWW-Authenticate": "Bearer"})
        else:
            self._answer(200, self.server.scrape(), **{"Content-Type": CONTENT_TYPE})

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": TEXT, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: scrapes come every few seconds."""


def _problem(address: Address, error: OSError) -> Problem:
    what = f"cannot listen on {address}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        what = f"port {address.port} of {address.host} is taken by another program"
    return Problem(WHERE, what, "name another address, or port 0 for one that is free")
