"""The commands `invite`, `invitations` and `revoke`, for whoever may administer the run's Redis."""

import re
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Column, Table

from echo_queue.cli.documents import InvitationEntry
from echo_queue.cli.output import print_json
from echo_queue.config import Config
from echo_queue.config.model import NAME, NAME_IS
from echo_queue.connections.connect import connect_redis
from echo_queue.errors import ConfigError, Problem
from echo_queue.fleet.invitation.issuing import issue
from echo_queue.fleet.invitation.register import Entry, Register
from echo_queue.launch.problem_output import WARNING, print_problems
from echo_queue.queue import Admin, Caller
from echo_queue.queue.counts import counted

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def invite(config: Config, name: str, valid: str) -> None:
    """Prints a token on stdout, and what belongs to it on stderr. `valid`: how long, such as "24h"."""
    if name and not NAME.fullmatch(name):
        raise ConfigError(Problem("--name", NAME_IS, "name it otherwise"))
    issued = issue(config, name, _seconds(valid))
    print_problems(issued.warnings, sign=WARNING)
    invitation = issued.invitation
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"invitation {invitation.id} for {invitation.name}, until {_time(invitation.expires_ms)}; on the machine, with "
        f"the token on standard input: echo-queue join - --inviter {issued.public_key}"
    )
    print(issued.token)


def list_invitations(config: Config, *, as_json: bool) -> None:
    """Prints all invitations with their states, the oldest first."""
    with connect_redis(config, "admin") as client:
        entries = Register(client, config.run.name).tidy()
    if as_json:
        listed = [
            InvitationEntry(one.id, one.name, one.state, _at(one.since_ms), _at(one.expires_ms), one.host or None)
            for one in entries
        ]
        print_json(listed, list[InvitationEntry])
        return
    columns = (Column(title, no_wrap=True) for title in ("id", "name", "state", "since", "expires", "host"))
    table = Table(*columns, box=None)
    for one in entries:
        table.add_row(one.id, one.name, one.state, _time(one.since_ms), _time(one.expires_ms), one.host)
    Console(highlight=False, markup=False).print(table if entries else "nobody has been invited")
    print_problems([_unreadable(one) for one in entries if one.state == "unreadable"], sign=WARNING)


def _unreadable(one: Entry) -> Problem:
    fix = f"`echo-queue revoke CONFIG {one.id}` removes it, and its users"
    return Problem(f"invitation {one.id}", "its record cannot be read", fix)


def revoke(config: Config, id: str) -> None:
    """Takes the rights of an invitation's workers away, and frees what they hold. It may be told again."""
    with connect_redis(config, "admin") as client:
        register = Register(client, config.run.name)
        revoked = register.revoke(id)
        print_problems(register.keep_users(), sign=WARNING)
        operator = Admin(Caller(client, config.run.name))
        held = operator.evict(revoked.workers) if revoked.begun and revoked.workers else 0
        if held:
            operator.reclaim_all()
    said = "is revoked" if revoked.first else "was revoked before"
    freed = f"; the {counted(held, 'task')} that its workers held {'is' if held == 1 else 'are'} free for others"
    Console(highlight=False, soft_wrap=True, markup=False).print(f"invitation {id} {said}{freed if held else ''}")


def _seconds(text: str) -> int:
    words = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if words is None or not int(words[1]):
        raise ConfigError(Problem("--for", f"{text} is no length of time", "write 90s, 30m, 24h or 7d"))
    return int(words[1]) * UNITS_S[words[2]]


def _at(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def _time(ms: int) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC" if (at := _at(ms)) else "-"
