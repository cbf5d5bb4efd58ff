"""vLLM's own metrics under their own names (`vllm:num_requests_running`, `vllm:kv_cache_usage_perc`, …), over HTTP.

Prometheus scrapes them like those of any vLLM; they are counted while the engine runs, scraped or not.
"""

import errno
from threading import Thread
from wsgiref.simple_server import WSGIServer

from echo_queue.errors import ConfigError, Problem

NEIGHBOURS = 64
"""Workers of one machine share one configuration: each takes the first free port among so many."""
CLOSE_S = 5.0


class MetricsEndpoint:
    """The HTTP server of the metrics, in a thread of its own."""

    def __init__(self, first: int) -> None:
        """Listens at port `first`, or at the next one that is free. Raises `ConfigError` if none is."""
        self.port, self._server, self._thread = _listen(first)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=CLOSE_S)


def _listen(first: int) -> tuple[int, WSGIServer, Thread]:
    from prometheus_client import start_http_server

    for port in range(first, min(first + NEIGHBOURS, 65_536)):
        try:
            return port, *start_http_server(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(_cannot(port, error.strerror)) from None
    raise ConfigError(_cannot(first, f"neither it nor the {NEIGHBOURS - 1} after it are free"))


def _cannot(port: int, why: str | None) -> Problem:
    return Problem("rollout.metrics_port", f"cannot listen at {port}: {why}", "choose another port, or 0 for none")
