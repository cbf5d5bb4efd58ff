"""Checks, before any role starts, that the services of a run can be used, and reports every problem at once."""

from collections.abc import Callable, Iterator
from typing import Any

from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.endpoints import EMBEDDED, services_dir
from echo_queue.errors import Problem, ServiceError
from echo_queue.launch.server_process import ServerProcess
from echo_queue.services import s3_server
from echo_queue.services.redis_server import find_program


def check(config: Config) -> list[Problem]:
    """Returns every problem with both services. An embedded service that does not run yet only needs its program."""
    return [*_check_redis(config), *_check_store(config)]


def _check_redis(config: Config) -> Iterator[Problem]:
    if config.redis.url == EMBEDDED and not ServerProcess(services_dir(config) / "redis").attach():
        yield from _problems(lambda: find_program(config.redis.program))
    else:
        yield from _problems(lambda: connect_redis(config, "monitor", deadline_s=2.0).close())


def _check_store(config: Config) -> Iterator[Problem]:
    if config.store.url == EMBEDDED and not ServerProcess(services_dir(config) / "store").attach():
        yield from _problems(s3_server.find_program)
    else:
        yield from _problems(lambda: connect_store(config, deadline_s=2.0))


def _problems(attempt: Callable[[], Any]) -> tuple[Problem, ...]:
    try:
        attempt()
    except ServiceError as error:
        return error.problems
    return ()
