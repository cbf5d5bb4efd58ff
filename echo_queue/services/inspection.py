"""Checks, before any role starts, that the services of a run can be used, and reports every problem at once."""

from collections.abc import Callable
from dataclasses import replace

import redis

from echo_queue.config import Config
from echo_queue.connections import redis_check, store_check
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.endpoints import EMBEDDED, services_dir
from echo_queue.connections.redis_errors import explain
from echo_queue.connections.verdict import Verdict
from echo_queue.errors import ServiceError
from echo_queue.launch.server_process import ServerProcess
from echo_queue.services import s3_server
from echo_queue.services.redis_server import find_program

CONNECT_S = 2.0


def inspect(config: Config) -> Verdict:
    """Returns every problem with both services. An embedded service that does not run yet only needs its program."""
    of_redis, of_store = _verdict(lambda: _inspect_redis(config)), _verdict(lambda: _inspect_store(config))
    return Verdict(of_redis.refusals + of_store.refusals, of_redis.warnings + of_store.warnings)


def _inspect_redis(config: Config) -> Verdict:
    if config.redis.url == EMBEDDED and not ServerProcess(services_dir(config) / "redis").attach():
        find_program(config.redis.program)
        return Verdict()
    with connect_redis(config, "monitor", CONNECT_S) as client:
        facts = redis_check.read_facts(client, config.run.name)
    verdict = redis_check.judge(facts, config.redis)
    if config.redis.url == EMBEDDED:
        return verdict
    return replace(verdict, warnings=(*verdict.warnings, *redis_check.unread(facts, config.redis)))


def _inspect_store(config: Config) -> Verdict:
    if config.store.url != EMBEDDED:
        return store_check.examine(connect_store(config, deadline_s=CONNECT_S))
    if ServerProcess(services_dir(config) / "store").attach():
        connect_store(config, deadline_s=CONNECT_S)
    else:
        s3_server.find_program()
    return Verdict()


def _verdict(inspect: Callable[[], Verdict]) -> Verdict:
    try:
        return inspect()
    except ServiceError as error:
        return Verdict(refusals=error.problems)
    except redis.RedisError as error:
        return Verdict(refusals=(explain(error, "it answered at first"),))
