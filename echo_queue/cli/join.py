"""The command `join`: makes this machine a worker of the run that a token names.

Everything that can be checked is checked before the invitation is claimed, and all that is missing is said at once. A
machine that has claimed its invitation starts again from its folder, also after the token has expired.
"""

import os
import platform
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from echo_queue.cli import preflight
from echo_queue.config import Config
from echo_queue.config.loading import examine, load
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.redis_errors import PASSWORD_FIX
from echo_queue.errors import ConfigError, EchoQueueError, Problem, ServiceError
from echo_queue.invitation import machine
from echo_queue.invitation.claiming import claim, refuse_own_keys, refuse_unsafe, revoked, visiting
from echo_queue.invitation.home import AUTHORITY, Home
from echo_queue.invitation.register import Guest, worker_user, workers_prefix
from echo_queue.invitation.token import Invitation, SignedToken, read_token
from echo_queue.launch.problem_output import WARNING, print_problems
from echo_queue.launch.roles import become

FOLDER = "joined"
STDIN = "-"


def join(text: str, folder: Path | None, *, inviter: str, name: str, check: bool) -> None:
    """Joins, and becomes the worker unless `check`. `text`: the token, or `-` for the first line of standard input.

    Raises `EchoQueueError` with all that is missing or wrong.
    """
    token = read_token(sys.stdin.readline() if text == STDIN else text, inviter)
    refuse_unsafe(token, inviter)
    invitation = token.invitation
    home = Home(folder or Path(FOLDER) / f"{invitation.run}-{invitation.id}", invitation.id)
    home.open()
    claimed_before = home.grant(token) is not None
    if not claimed_before:
        _claim(token, home, inviter)
    home.apply_environment()
    config = load(home.config)
    if claimed_before and (problems := tuple(_missing(config, home, invitation))):
        raise ConfigError(*problems)
    _try_services(config, invitation)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"this machine is invited to run {invitation.run} as {invitation.name}; its folder is {home.path}")
    if not check:
        print_problems(machine.gpu_warnings(machine.gpus()), sign=WARNING)
        become("workers", home.config, "--name", name or _own_name(invitation))


def _own_name(invitation: Invitation) -> str:
    """Returns a name that no other process has: in a container the id is 1."""
    process = os.getpid()
    own = process if process > 1 else secrets.token_hex(4)
    return f"{workers_prefix(invitation.name, invitation.id)}{own}"


def _claim(token: SignedToken, home: Home, inviter: str) -> None:
    """Checks the machine, claims the grant, and keeps it in the folder. Raises `EchoQueueError`."""
    invitation = token.invitation
    home.keep_settings(_settings(invitation, home, reachable=True), invitation.authority)
    authority = home.path / AUTHORITY if invitation.authority else None
    problems: list[Problem] = []
    try:
        with visiting(token, authority) as guest:
            problems += machine.clock_problems(int(time.time() * 1000), guest.now_ms())
            _find_peers(guest, invitation, home)
            problems += _problems(home, invitation)
            if not problems:
                envelope = claim(guest, invitation, home.nonce(), platform.node())
                grant = token.open_grant(envelope)
                refuse_own_keys(grant, inviter)
                home.keep_grant(envelope, grant)
                return
    except ServiceError as error:
        problems += (*error.problems, *_problems(home, invitation))
    raise ConfigError(*problems)


def _find_peers(guest: Guest, invitation: Invitation, home: Home) -> None:
    """Tries the ways between this machine and other workers, and says which are closed.

    A machine that Redis sees under another address is behind a NAT: it will not offer itself to others, unless its
    settings say where they reach it.
    """
    own, seen = machine.host_towards(invitation.redis_url), guest.own_host()
    if machine.is_behind_nat(own, seen):
        home.keep_settings(_settings(invitation, home, reachable=False), invitation.authority)
        what = f"Redis sees this machine as {seen}, and it is {own} itself: other workers cannot fetch weights from it"
        fix = "nothing has to be done; where a port leads here, set ECHO_QUEUE_WEIGHTS__PEER_HOST, __PEER_PORT and "
        print_problems([Problem("peers", what, f"{fix}ECHO_QUEUE_WEIGHTS__REACHABLE=true")], sign=WARNING)
    print_problems(machine.peer_warnings(guest.peers()), sign=WARNING)


def _settings(invitation: Invitation, home: Home, *, reachable: bool) -> dict[str, dict[str, object]]:
    """Returns the worker's configuration: the run's settings, and those of this machine."""
    settings = {section: dict(values) for section, values in invitation.settings.items()}
    settings.setdefault("run", {}).update(name=invitation.run, dir=str(home.path / "run"))
    user = worker_user(invitation.run, invitation.id)
    settings.setdefault("redis", {}).update(url=invitation.redis_url, username=user)
    if invitation.authority:
        settings["redis"]["ca_file"] = str(home.path / AUTHORITY)
    if not reachable:
        settings.setdefault("weights", {})["reachable"] = False
    return settings


def _problems(home: Home, invitation: Invitation) -> Iterator[Problem]:
    config, problems = examine(home.config)
    yield from problems
    if config is not None:
        yield from _missing(config, home, invitation)
        yield from machine.store_problems(config.store.url)


def _missing(config: Config, home: Home, invitation: Invitation) -> Iterator[Problem]:
    """Yields what this machine lacks by itself."""
    yield from preflight.problems(config, preflight.For.worker)
    found, size = machine.gpus(), invitation.model_bytes
    yield from machine.gpu_problems(config.rollout.engine, found, machine.torch_cuda(), size)
    yield from machine.disk_problems(home.path, size)
    yield from machine.peer_port_problems(config)


def _try_services(config: Config, invitation: Invitation) -> None:
    """Connects as the worker will. Raises `EchoQueueError` with all that fails."""
    problems: list[Problem] = []
    for connect in (lambda: connect_redis(config, "worker").close(), lambda: connect_store(config, "worker")):
        try:
            connect()
        except EchoQueueError as error:
            if any(problem.fix == PASSWORD_FIX for problem in error.problems):
                raise revoked(invitation) from None
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
