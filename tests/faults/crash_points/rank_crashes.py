"""Crashes of a rank: SIGKILL at places where a death could lose or repeat what the ranks do together.

A crash point ends a process after a step that writes or sends. A rank also computes and waits together with the others,
so these places are functions of the learner, before, in or after which it dies. `arm` is called in each rank at its
start; the deaths of a run, and the times at which it went on after each, are files of its directory.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from learner import follower, leader, training_loop
from learner.leader import Leader
from learner.model.policy import Policy
from learner.ranks.team import Team
from learner.recovery import checkpoint
from tests.waiting import wait_until

Die = Callable[[], NoReturn]

PLAN, DEATHS, TIMES, RESUMPTIONS = "plan", "deaths", "times", "resumptions"
OTHERS_UPLOAD_S = 20.0


class Crash(NamedTuple):
    """The rank that dies, and the place of `PLACES` at which it does."""

    place: str
    rank: int


def plan(directory: Path, crashes: tuple[Crash, ...]) -> None:
    """Writes which crashes come over a run, one after the other; after them no rank dies any more."""
    (directory / PLAN).write_text("".join(f"{crash.rank} {crash.place}\n" for crash in crashes))


def planned(directory: Path, file: str = PLAN) -> list[Crash]:
    """Returns the planned crashes, or, from the file `DEATHS`, those that have happened."""
    words = [line.split(" ", 1) for line in _lines(directory / file)]
    return [Crash(place, int(rank)) for rank, place in words]


def resumed_s(directory: Path) -> list[float]:
    """Returns, for each death, the seconds until the next ranks got their first order."""
    ends = [float(line) for line in _lines(directory / TIMES)]
    return [float(began) - end for began, end in zip(_lines(directory / RESUMPTIONS), ends, strict=True)]


def arm(directory: Path, rank: int) -> None:
    """Lets this rank die of the next planned crash, if it is its own. Rank 0 notes when its run goes on."""
    died = len(_lines(directory / DEATHS))
    crashes = planned(directory)
    if rank == 0 and died:
        _once(leader, "send", lambda: _note(directory / RESUMPTIONS, str(time.time())))
    if died < len(crashes) and crashes[died].rank == rank:
        crash = crashes[died]

        def die() -> NoReturn:
            _note(directory / TIMES, str(time.time()))
            _note(directory / DEATHS, f"{crash.rank} {crash.place}")
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("it lives on")

        PLACES[crash.place](rank, die)


# The places -----------------------------------------------------------------------------------------------------------


def _before_an_order(rank: int, die: Die) -> None:
    if rank == 0:
        _wrap(leader, "send", before=lambda team, order: die() if order and order.groups else None)
    else:
        _wrap(follower, "receive", before=lambda team: die() if team._decisions > FIRST_DECISIONS else None)


def _after_an_order(rank: int, die: Die) -> None:
    if rank == 0:
        _wrap(leader, "send", after=lambda _, team, order: die() if order and order.groups else None)
    else:
        _wrap(follower, "receive", after=lambda order, team: die() if order and order.groups else None)


def _in_the_backward_pass(rank: int, die: Die) -> None:
    _wrap(Policy, "score", after=lambda scored, *_: scored.logprobs.register_hook(lambda _: die()))


def _in_the_snapshot(rank: int, die: Die) -> None:
    """The other ranks are in the collectives of the snapshot by then, and wait."""
    _wrap(training_loop, "take_share", before=lambda *_: die())


def _between_the_uploads(rank: int, die: Die) -> None:
    """The other rank's part is stored and reported, this one's is not."""

    def write(store: object, team: Team, version: tuple[int, int], pieces: object) -> None:
        other = f"{checkpoint._parts_of(checkpoint.name_of(version))}/{1 - rank}"  # type: ignore[arg-type]
        wait_until(lambda: team._arrive([other], 0.0), "the other rank's part", OTHERS_UPLOAD_S)
        die()

    _wrap(checkpoint, "write", before=write)


def _before_the_manifest(rank: int, die: Die) -> None:
    if rank == 0:
        _wrap(checkpoint, "_check_whole", before=lambda *_: die())
    else:
        _wrap(checkpoint, "write", after=lambda *_: die())


def _before_the_commit(rank: int, die: Die) -> None:
    if rank == 0:
        _wrap(Leader, "commit", before=lambda _, saved: die() if saved else None)
    else:
        stored: list[bool] = []
        _wrap(checkpoint, "write", after=lambda *_: stored.append(True))
        _wrap(follower.Follower, "commit", before=lambda *_: die() if stored else None)


FIRST_DECISIONS = 3
"""So many decisions of rank 0 come before the first order that trains, at least."""
PLACES: Mapping[str, Callable[[int, Die], None]] = {
    "before an order is shared": _before_an_order,
    "after an order is shared": _after_an_order,
    "in the backward pass": _in_the_backward_pass,
    "in the snapshot": _in_the_snapshot,
    "between the ranks' uploads": _between_the_uploads,
    "before the manifest": _before_the_manifest,
    "before the commit": _before_the_commit,
}
CRASHES = tuple(Crash(place, rank) for place in PLACES for rank in (0, 1))


def _wrap(
    owner: Any, name: str, before: Callable[..., object] | None = None, after: Callable[..., object] | None = None
) -> None:
    """Lets a function of this process call `before` with its arguments, and `after` with its result and these."""
    function = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if before:
            before(*arguments)
        result = function(*arguments, **named)
        if after:
            after(result, *arguments)
        return result

    setattr(owner, name, wrapped)


def _once(owner: Any, name: str, action: Callable[[], None]) -> None:
    done: list[bool] = []

    def first(*_: object) -> None:
        if not done:
            done.append(True)
            action()

    _wrap(owner, name, before=first)


def _note(file: Path, line: str) -> None:
    with file.open("a") as lines:
        lines.write(line + "\n")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
