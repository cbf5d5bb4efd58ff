"""A group of like machines whose size is all that one may ask for: a Deployment, an Auto Scaling group.

The place names its members as it likes, and puts another one where one is lost. So a name that was ordered waits, in a
note at the group, until there is a member for it; then it is noted at that member. The size follows the notes: the
members that have names and stay, and the names that wait. An order that is repeated therefore asks for the same size.
All functions here are pure.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from echo_queue.errors import EchoQueueError
from echo_queue.fleet.drivers.protocol import Quote
from echo_queue.fleet.state import Machine


@dataclass(frozen=True)
class Member:
    """A machine of a group. `id`: its name in that place, by which its workers call it; `name`: noted at it, or empty.

    `ready`: it may be given a name, because a group that shrinks would take others before it. `marked`: the driver has
    begun to end it. `leaving`: the place is ending it.
    """

    id: str
    name: str = ""
    ready: bool = True
    marked: bool = False
    leaving: bool = False

    @property
    def stays(self) -> bool:
        return not (self.marked or self.leaving)


@dataclass(frozen=True)
class MachineGroup:
    """A pool's machines, oldest first. `size`: as asked for; `most`: the largest that the place takes, None: any.

    `waiting`: the names that have no member yet, oldest first. `used`: names that start nothing any more, as far as the
    place remembers them, the latest last. `versions`: of the notes and of the size, as they were read; a change of
    either is refused if they are older than what it is made to.
    """

    pool: str
    size: int
    members: tuple[Member, ...] = ()
    waiting: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    most: int | None = None
    versions: tuple[str, str] = ("", "")


class Changed(EchoQueueError):
    """A group has changed since it was read: nothing was done, and it is to be read again."""


class MachineGroups(Protocol):
    """The groups of one place, one for each pool. Each call raises `DriverError`, and those that change `Changed`."""

    def pools(self) -> Sequence[str]:
        """Returns the pools that have a group."""

    def read(self, pool: str) -> MachineGroup:
        """Returns the pool's group as it is now."""

    def price(self, pool: str) -> Quote:
        """Returns what a machine of the pool costs now."""

    def note(self, group: MachineGroup, waiting: Sequence[str]) -> MachineGroup:
        """Notes which names wait, in place of `group.waiting`, and that those which are new are used.

        Returns the group as it then is.
        """

    def name(self, member: Member, group: MachineGroup) -> None:
        """Notes the member's name at it."""

    def grow(self, group: MachineGroup, size: int) -> None:
        """Asks for a larger size."""

    def shrink(self, group: MachineGroup, members: Sequence[Member], size: int) -> None:
        """Ends these members and no other that has a name, and asks for the size that is then left."""


def bound(group: MachineGroup) -> MachineGroup:
    """Returns the group once each member that is ready has a name: one that waits, or else the member's own id."""
    names = iter(waiting(group))
    taken = [replace(member, name=next(names, member.id)) if _nameless(member) else member for member in group.members]
    return replace(group, members=tuple(taken), waiting=tuple(names))


def waiting(group: MachineGroup) -> tuple[str, ...]:
    """Returns the names that wait. One that is noted at a member does not, though its driver ended in between."""
    named = {member.name for member in group.members}
    return tuple(name for name in group.waiting if name not in named)


def is_used(group: MachineGroup, name: str) -> bool:
    """Returns whether a machine of this name was ever ordered."""
    return name in group.used or name in group.waiting or any(name in (one.name, one.id) for one in group.members)


def size_of(group: MachineGroup) -> int:
    """Returns the size that a bound group is to have."""
    return len(group.waiting) + sum(member.stays and bool(member.name) for member in group.members)


def without(group: MachineGroup, names: Collection[str]) -> MachineGroup:
    """Returns the group once none of these waits, and the members that are called so are marked."""
    members = [replace(one, marked=True) if (one.name or one.id) in names else one for one in group.members]
    return replace(group, members=tuple(members), waiting=tuple(name for name in group.waiting if name not in names))


def machines_of(group: MachineGroup) -> Iterator[Machine]:
    """Yields the machines of a bound group. A member without a name is the one that a waiting name will have."""
    for name in group.waiting:
        yield Machine(name, group.pool)
    spare = len(group.waiting)
    for member in group.members:
        if member.name:
            yield Machine(member.name, group.pool, member.id)
        elif member.stays and spare > 0:
            spare -= 1
        else:
            yield Machine(member.id, group.pool, member.id)


def _nameless(member: Member) -> bool:
    return member.ready and member.stays and not member.name
