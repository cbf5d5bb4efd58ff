"""The command `prepare`: what servers of the user's own need once, before the first role starts."""

import logging

from rich.console import Console

from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.errors import ConfigError, Problem
from echo_queue.fleet.invitation.register import Register
from echo_queue.launch import servers
from echo_queue.launch.problem_output import WARNING


class Signed(logging.Formatter):
    """Writes messages alone, and a warning with its sign."""

    def format(self, record: logging.LogRecord) -> str:
        return (WARNING[0] if record.levelno >= logging.WARNING else "") + record.getMessage()


def prepare_servers(config: Config) -> None:
    """Prepares them, and prints what was done. Raises `ConfigError` if there are none, `ServiceError` as `prepare`."""
    if config.redis.url == config.store.url == EMBEDDED:
        what = 'is "embedded", and so is store.url: embedded services need no preparation'
        raise ConfigError(Problem("redis.url", what, "`echo-queue run CONFIG`, or `echo-queue services CONFIG`"))
    handler = logging.StreamHandler()
    handler.setFormatter(Signed())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for done in servers.prepare(config):
        console.print(done)
    if config.redis.url != EMBEDDED:
        with connect_redis(config, "admin") as client:
            Register(client, config.run.name).tidy()
    if EMBEDDED in (config.redis.url, config.store.url):
        console.print("the other server is embedded: `echo-queue services` keeps it, on its own machine")
