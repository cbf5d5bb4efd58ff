"""The user's own commands as a driver, for anything that can start machines: SkyPilot, Slurm, a marketplace, a script.

    up NAME POOL    starts a machine, unless one of this name was started before; exit code 75 says that none can be had
    down NAME...    ends machines; those that are gone already are no error
    list            prints [{"name": ..., "pool": ...}, ...], all machines that exist
    offers          prints {POOL: {"usd_per_hour": ..., "available": ...}, ...}; it may be left out

Each is a list of words, and is given `deadline_s`. Another exit code than 0, or an answer of another form, means that
nothing is known, and the controller waits.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from echo_queue import failpoints
from echo_queue.errors import Problem
from echo_queue.fleet.drivers.protocol import DriverError, Quote
from echo_queue.fleet.state import Machine

NONE_TO_HAVE = 75
"""The exit code of `up` where no machine can be had now: EX_TEMPFAIL of sysexits.h."""
SAID_MAX = 300


class _Listed(BaseModel):
    model_config = ConfigDict(extra="ignore")
    name: str
    pool: str


class _Offered(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    usd_per_hour: float | None = Field(None, ge=0)
    available: int | None = Field(None, ge=0)


LISTED = TypeAdapter(list[_Listed])
OFFERED = TypeAdapter(dict[str, _Offered])


@dataclass(frozen=True)
class Commands:
    """The commands, as lists of words."""

    up: Sequence[str]
    down: Sequence[str]
    list: Sequence[str]
    offers: Sequence[str] = ()


class CommandDriver:
    """Runs the commands, one at a time, each for `deadline_s` at most."""

    def __init__(self, commands: Commands, deadline_s: float) -> None:
        self._commands = commands
        self._deadline_s = deadline_s

    def machines(self) -> tuple[Machine, ...]:
        answer = self._run("list", self._commands.list).stdout
        try:
            return tuple(Machine(one.name, one.pool) for one in LISTED.validate_json(answer))
        except ValidationError as error:
            raise self._unreadable("list", error) from None

    def start(self, name: str, pool: str) -> bool:
        start = partial(self._run, "up", (*self._commands.up, name, pool), other=NONE_TO_HAVE)
        return failpoints.step("start machine", start, name).returncode == 0

    def end(self, names: Sequence[str]) -> None:
        if names:
            failpoints.step("end machine", partial(self._run, "down", (*self._commands.down, *names)), names)

    def offers(self) -> Mapping[str, Quote]:
        if not self._commands.offers:
            return {}
        answer = self._run("offers", self._commands.offers).stdout
        try:
            offered = OFFERED.validate_json(answer)
        except ValidationError as error:
            raise self._unreadable("offers", error) from None
        return {pool: Quote(one.usd_per_hour, one.available) for pool, one in offered.items()}

    def _run(self, what: str, words: Sequence[str], other: int = 0) -> "subprocess.CompletedProcess[str]":
        """Raises `DriverError` for an exit code that is neither 0 nor `other`."""
        where = f"controller.{what}"
        try:
            ended = subprocess.run(words, capture_output=True, text=True, timeout=self._deadline_s, check=False)
        except subprocess.TimeoutExpired:
            what_failed = f"has not ended within {self._deadline_s:g} s"
            raise DriverError(Problem(where, what_failed, "make it faster, or raise controller.deadline_s")) from None
        except OSError as error:
            raise DriverError(Problem(where, f"{words[0]}: {error.strerror}", "name a program")) from None
        if ended.returncode not in (0, other):
            said = f"ended with exit code {ended.returncode}: {ended.stderr.strip()[-SAID_MAX:]}"
            raise DriverError(Problem(where, said, "run it by hand; docs/fleet.md says what it must do"))
        return ended

    def _unreadable(self, what: str, error: ValidationError) -> DriverError:
        first = error.errors()[0]
        where = "".join(f"[{part!r}]" for part in first["loc"])
        said = f"its answer{where}: {first['msg'].lower()}"
        return DriverError(Problem(f"controller.{what}", said, "print what docs/fleet.md says"))
