"""The command `metrics`: the figures of a run for Prometheus, once or over HTTP."""

import logging
import sys
import threading
from functools import partial

from echo_queue.cli.inspect.live.watcher import monitor_caller
from echo_queue.cli.inspect.scrape_server import PATH, ScrapeServer, address_of, require_token
from echo_queue.cli.inspect.scrapes import Scrapes
from echo_queue.config import Config
from echo_queue.connections.secrets import metrics_token
from echo_queue.errors import AGAIN, DONE
from echo_queue.launch.signals import set_on_signals

LOOK_S = 3600.0


def print_once(config: Config) -> int:
    """Prints the figures. Returns the exit code, 1 if Redis did not answer: then the text says only that."""
    found = _scrapes(config).scrape()
    sys.stdout.buffer.write(found.text)
    return AGAIN if found.trouble else DONE


def serve(config: Config, listen: str) -> None:
    """Serves the figures until SIGTERM or Ctrl-C, also while Redis is away.

    Raises `ConfigError` for an address that needs a token, `ServiceError` for one that is taken.
    """
    address, token = address_of(listen), metrics_token()
    require_token(address, token)
    scrapes, stop = _scrapes(config), threading.Event()
    set_on_signals(stop)
    server = ScrapeServer(address, token, lambda: scrapes.scrape().text)
    print(f"the figures of run {config.run.name} are at http://{server.address}{PATH}", file=sys.stderr, flush=True)
    while not stop.wait(LOOK_S):
        pass
    server.close()


def _scrapes(config: Config) -> Scrapes:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    return Scrapes(config.run.name, partial(monitor_caller, config))
