"""The command `join`: makes the GPUs of this machine workers of the run that a token names.

Everything that can be checked is checked before the invitation is claimed, and all that is missing is said at once. A
machine that has claimed its invitation starts again from its folder, also after the token has expired.
"""

import platform
import sys
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from rich.console import Console

from echo_queue.cli.join.workers import work
from echo_queue.cli.run import preflight
from echo_queue.cli.run.placement import placements
from echo_queue.config import Config
from echo_queue.config.loading import examine, load
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.redis_errors import RefusedUserError
from echo_queue.errors import ConfigError, EchoQueueError, Problem, ServiceError
from echo_queue.fleet.invitation import machine
from echo_queue.fleet.invitation.claiming import claim, refuse_own_keys, refuse_unsafe, revoked, visiting
from echo_queue.fleet.invitation.home import AUTHORITY, Home
from echo_queue.fleet.invitation.register import Guest, worker_user, workers_prefix
from echo_queue.fleet.invitation.token import Invitation, SignedToken, read_token
from echo_queue.launch.problem_output import WARNING, print_problems
from echo_queue.launch.supervisor import RoleError

FOLDER = "joined"
STDIN = "-"
SHOWN = Problem(
    "join",
    "the token is in this command's words, where everyone on this machine can read it while the command runs",
    "give `-`, and the token on standard input: `echo-queue join - < FILE`",
)


def join(text: str, folder: Path | None, *, inviter: str, workers: int | None, check: bool) -> None:
    """Joins, and runs the workers unless `check`. `text`: the token, or `-` for the first line of standard input.

    `workers`: how many; None: one on each GPU, or one where there is none.
    Raises `EchoQueueError` with all that is missing or wrong.
    """
    token = read_token(_given() if text == STDIN else text, inviter)
    if text != STDIN:
        print_problems([SHOWN], sign=WARNING)
    refuse_unsafe(token, inviter)
    invitation = token.invitation
    home = Home(folder or Path(FOLDER) / f"{invitation.run}-{invitation.id}", invitation.id)
    home.open()
    claimed_before = home.grant(token) is not None
    if not claimed_before:
        _claim(token, home, inviter, workers)
    home.apply_environment()
    config = load(home.config)
    if claimed_before and (problems := tuple(_missing(config, home, invitation, workers))):
        raise ConfigError(*problems)
    _try_services(config, invitation)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    console.print(f"this machine is invited to run {invitation.run} as {invitation.name}; its folder is {home.path}")
    if not check:
        prefix, devices = workers_prefix(invitation.name, invitation.id), _devices(config)
        names = [f"{prefix}{number}" for number in range(workers or _usual(devices))]
        placed = placements(names, devices, config.weights.peer_port)
        try:
            work(config, home.config, placed)
        except RoleError:
            _refuse_revoked(config, invitation)
            raise


def _given() -> str:
    """Returns the first line of standard input; asks for it where a person types."""
    if sys.stdin.isatty():
        print("paste the token:", file=sys.stderr)
    return sys.stdin.readline()


def _devices(config: Config) -> list[str]:
    return machine.devices(config.rollout.engine, machine.gpus(), machine.torch_cuda())


def _usual(devices: Sequence[str]) -> int:
    """Returns how many workers there are unless the machine's owner says it."""
    return max(1, len(devices))


def _claim(token: SignedToken, home: Home, inviter: str, workers: int | None) -> None:
    """Checks the machine, claims the grant, and keeps it in the folder. Raises `EchoQueueError`."""
    invitation = token.invitation
    home.keep_settings(_settings(invitation, home, reachable=True), invitation.authority)
    authority = home.path / AUTHORITY if invitation.authority else None
    problems: list[Problem] = []
    try:
        with visiting(token, authority) as guest:
            problems += machine.clock_problems(int(time.time() * 1000), guest.now_ms())
            _find_peers(guest, invitation, home)
            problems += _problems(home, invitation, workers)
            if not problems:
                envelope = claim(guest, invitation, home.nonce(), platform.node())
                grant = token.open_grant(envelope)
                refuse_own_keys(grant, inviter)
                home.keep_grant(envelope, grant)
                return
    except ServiceError as error:
        problems += (*error.problems, *_problems(home, invitation, workers))
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


def _settings(invitation: Invitation, home: Home, *, reachable: bool) -> dict[str, Any]:
    """Returns the worker's configuration: the run's settings, and those of this machine."""
    settings: dict[str, Any] = deepcopy(invitation.settings)
    settings.setdefault("run", {}).update(name=invitation.run, dir=str(home.path / "run"))
    user = worker_user(invitation.run, invitation.id)
    settings.setdefault("redis", {}).update(url=invitation.redis_url, username=user)
    if invitation.authority:
        settings["redis"]["ca_file"] = str(home.path / AUTHORITY)
    if not reachable:
        settings.setdefault("weights", {})["reachable"] = False
    return settings


def _problems(home: Home, invitation: Invitation, workers: int | None) -> Iterator[Problem]:
    config, problems = examine(home.config)
    yield from problems
    if config is not None:
        yield from _missing(config, home, invitation, workers)
        yield from machine.store_problems(config.store.url)


def _missing(config: Config, home: Home, invitation: Invitation, workers: int | None) -> Iterator[Problem]:
    """Yields what this machine lacks by itself."""
    yield from preflight.problems(config, preflight.For.worker)
    found, cuda, size, engine = machine.gpus(), machine.torch_cuda(), invitation.model_bytes, config.rollout.engine
    devices = machine.devices(engine, found, cuda)
    number = workers or _usual(devices)
    yield from machine.worker_problems(number, devices)
    share = config.rollout.gpu_memory_utilization
    yield from machine.gpu_problems(engine, machine.named(found, devices[:number]), cuda, size, share)
    yield from machine.disk_problems(home.path, size, number)
    yield from machine.peer_port_problems(config, number)


def _refuse_revoked(config: Config, invitation: Invitation) -> None:
    """Raises `InvitationError` if the invitation has been revoked; else whoever calls knows more."""
    try:
        connect_redis(config, "worker").close()
    except RefusedUserError:
        raise revoked(invitation) from None
    except EchoQueueError:
        return


def _try_services(config: Config, invitation: Invitation) -> None:
    """Connects as the worker will. Raises `EchoQueueError` with all that fails."""
    problems: list[Problem] = []
    for connect in (lambda: connect_redis(config, "worker").close(), lambda: connect_store(config, "worker")):
        try:
            connect()
        except RefusedUserError:
            raise revoked(invitation) from None
        except EchoQueueError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
