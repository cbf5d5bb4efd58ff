"""The view's probe of the store goes the way that the roles go: through a proxy of the shell, and never to loopback."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from echo_queue.cli.inspect.live.store_probe import StoreProbe
from echo_queue.config import Config
from tests.connections.storage.test_shell import NOBODY, PROXIES

KEYS = {"ECHO_QUEUE_STORE_ACCESS_KEY": "key", "ECHO_QUEUE_STORE_SECRET_KEY": "secret"}


class Answers(BaseHTTPRequestHandler):
    """A server that is asked, or a proxy, which is asked for a whole address; it refuses whatever it is."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_probe_goes_where_the_roles_go(
    configure: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, server: str, scheme: str
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    elsewhere = configure(store={"url": "http://store.invalid:9", "bucket": "bucket"})
    here = configure(store={"url": f"http://{server}", "bucket": "bucket"})
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    assert "does not answer this machine (http://store.invalid:9)" in StoreProbe(elsewhere).trouble()
    assert not StoreProbe(here).trouble()
    monkeypatch.setenv("http_proxy", f"{scheme}{server}")
    assert not StoreProbe(elsewhere).trouble()
    monkeypatch.setenv("http_proxy", NOBODY)
    assert not StoreProbe(here).trouble()
    assert "does not answer" in StoreProbe(elsewhere).trouble()
