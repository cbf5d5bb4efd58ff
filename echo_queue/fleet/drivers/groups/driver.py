"""Groups of like machines as a driver. What is to be is noted before it is asked for, so any call can be repeated."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from echo_queue.errors import Problem
from echo_queue.fleet.drivers.groups.group import (
    Changed,
    MachineGroup,
    MachineGroups,
    bound,
    is_used,
    machines_of,
    size_of,
    without,
)
from echo_queue.fleet.drivers.protocol import DriverError, Quote
from echo_queue.fleet.state import Machine

T = TypeVar("T")
TRIES, PAUSE_S = 6, 0.05
"""How often a group is read again that has changed meanwhile, and the pause before it, longer each time."""


class GroupDriver:
    """Machines of these groups. Without `notes` nothing is written, and names come anew with each list."""

    def __init__(self, groups: MachineGroups, *, notes: bool) -> None:
        self._groups = groups
        self._notes = notes

    def machines(self) -> tuple[Machine, ...]:
        pools = self._groups.pools()
        return tuple(one for pool in pools for one in machines_of(self._unchanged(self._read, pool)))

    def start(self, name: str, pool: str) -> bool:
        if pool not in self._groups.pools():
            raise DriverError(Problem(f"pools.{pool}", "has no group of machines", "make one, or leave the pool out"))
        return self._unchanged(lambda pool: self._start(name, pool), pool)

    def end(self, names: Sequence[str]) -> None:
        for pool in self._groups.pools() if names else ():
            self._unchanged(lambda pool: self._end(names, pool), pool)

    def offers(self) -> Mapping[str, Quote]:
        return {pool: self._quote(pool) for pool in self._groups.pools()}

    def _quote(self, pool: str) -> Quote:
        group, price = bound(self._groups.read(pool)), self._groups.price(pool)
        room = None if group.most is None else max(0, group.most - size_of(group))
        return price._replace(available=room)

    def _read(self, pool: str) -> MachineGroup:
        """Returns the group with all names given, and notes those that are new."""
        before = self._groups.read(pool)
        group = bound(before)
        if not self._notes:
            return group
        for was, member in zip(before.members, group.members, strict=True):
            if was.name != member.name:
                self._groups.name(member, group)
        if before.waiting == group.waiting:
            return group
        return self._groups.note(replace(group, waiting=before.waiting), group.waiting)

    def _start(self, name: str, pool: str) -> bool:
        group = self._read(pool)
        if not is_used(group, name):
            size = size_of(group) + 1
            if group.most is not None and size > group.most:
                return False
            group = self._groups.note(group, (*group.waiting, name))
        if size_of(group) > group.size:
            self._groups.grow(group, size_of(group))
        return True

    def _end(self, names: Sequence[str], pool: str) -> None:
        group = self._read(pool)
        if not any(is_used(group, name) for name in names):
            return
        after = without(group, names)
        if after.waiting != group.waiting:
            group = self._groups.note(group, after.waiting)
        ended = [one for one in after.members if (one.name or one.id) in names and not one.leaving]
        if ended or size_of(after) < group.size:
            self._groups.shrink(group, ended, min(size_of(after), group.size))

    def _unchanged(self, act: Callable[[str], T], pool: str) -> T:
        """Repeats `act` until nobody else has changed the group meanwhile. Each of its steps may be repeated."""
        for number in range(TRIES):
            try:
                return act(pool)
            except Changed:
                time.sleep(number * PAUSE_S)
        what = f"its group has changed each of the {TRIES} times that it was to be changed"
        raise DriverError(Problem(f"pools.{pool}", what, "see who else scales it, and let one of them do so"))
