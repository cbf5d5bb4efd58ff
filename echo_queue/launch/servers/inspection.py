"""Checks, before any role starts, that the services of a run can be used, and reports every problem at once.

Each service is asked as each of the roles that are to run here, with that role's own secrets.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import redis

from echo_queue.config import Config
from echo_queue.connections import redis_check, store_check
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.endpoints import EMBEDDED, redis_endpoint, services_dir, store_endpoint
from echo_queue.connections.redis_errors import RefusedUserError, explain, refused_users
from echo_queue.connections.secrets import Role
from echo_queue.connections.storage.errors import Unreachable
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.connections.verdict import Verdict
from echo_queue.errors import Problem, ServiceError
from echo_queue.launch.servers import s3_server
from echo_queue.launch.servers.redis_server import find_program
from echo_queue.launch.servers.server_process import ServerProcess
from echo_queue.queue.keys import Keys

CONNECT_S = 2.0
RUN: tuple[Role, ...] = ("learner", "worker", "submitter", "celery", "monitor")
"""The roles of a whole run on one machine."""
OF_STORE: tuple[Role, ...] = ("learner", "worker", "submitter")
"""The roles that cannot do their part without the store."""


def inspect(config: Config, roles: Sequence[Role] = RUN) -> Verdict:
    """Returns every problem with both services that one of `roles` would meet.

    An embedded service that does not run yet only needs its program.
    """
    of_redis = _verdict(lambda: _inspect_redis(config, roles))
    of_store = _verdict(lambda: _inspect_store(config, [role for role in OF_STORE if role in roles]))
    return Verdict(of_redis.refusals + of_store.refusals, of_redis.warnings + of_store.warnings)


def _inspect_redis(config: Config, roles: Sequence[Role]) -> Verdict:
    if config.redis.url == EMBEDDED and not ServerProcess(services_dir(config) / "redis").attach():
        find_program(config.redis.program)
        return Verdict()

    def ask(role: Role) -> Verdict:
        with connect_redis(config, role, CONNECT_S, judge=False) as client:
            if role != roles[0]:
                return Verdict()
            facts = redis_check.read_facts(client, config.run.name)
            unprepared = () if roles == RUN else _unprepared(client, config)
        verdict = redis_check.judge(facts, config.redis, submits="celery" in roles)
        verdict = replace(verdict, warnings=(*verdict.warnings, *unprepared))
        if config.redis.url == EMBEDDED or role not in redis_check.TOLD:
            return verdict
        return replace(verdict, warnings=(*verdict.warnings, *redis_check.unread(facts, config.redis)))

    return _of_each(roles, lambda role: redis_endpoint(config, role), ask)


def _unprepared(client: redis.Redis, config: Config) -> tuple[Problem, ...]:
    """Warns of a server of the user's own on which no role of the run can begin yet; a whole run prepares it."""
    if config.redis.url == EMBEDDED or client.hgetall(Keys(config.run.name).rules):
        return ()
    what = f"nobody has prepared {config.redis.url} for run {config.run.name}"
    return (Problem("redis.url", what, "run `echo-queue prepare CONFIG` once, as user admin"),)


def _inspect_store(config: Config, roles: Sequence[Role]) -> Verdict:
    if config.store.url == EMBEDDED and not ServerProcess(services_dir(config) / "store").attach():
        s3_server.find_program()
        return Verdict()

    def ask(role: Role) -> Verdict:
        store: ObjectStore = connect_store(config, role, CONNECT_S)
        return store_check.examine(store) if role == "learner" and config.store.url != EMBEDDED else Verdict()

    return _of_each(roles, lambda role: store_endpoint(config, role), ask)


def _of_each(roles: Sequence[Role], endpoint: Callable[[Role], object], ask: Callable[[Role], Verdict]) -> Verdict:
    """Asks as each role, but only once as each user. A server that does not answer is asked no more."""
    refusals: list[Problem] = []
    warnings: list[Problem] = []
    refused: list[RefusedUserError] = []
    known: list[object] = []
    for role in roles:
        try:
            if (user := endpoint(role)) in known:
                continue
            known.append(user)
            found = ask(role)
        except RefusedUserError as error:
            refused.append(error)
            continue
        except Unreachable as error:
            refusals += error.problems
            break
        except ServiceError as error:
            found = Verdict(error.problems)
        refusals += found.refusals
        warnings += found.warnings
    return Verdict((*refused_users(refused), *dict.fromkeys(refusals)), tuple(warnings))


def _verdict(inspect: Callable[[], Verdict]) -> Verdict:
    try:
        return inspect()
    except ServiceError as error:
        return Verdict(refusals=error.problems)
    except redis.RedisError as error:
        return Verdict(refusals=(explain(error, "it answered at first"),))
