"""Orders: rank 0 decides by them what all ranks do next.

An order is a header of JSON and the groups' own encoding; its bytes go from rank 0 to ranks of the same run only.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from echo_queue.records import Group, Version, group_codec
from learner.ranks.team import Team

LENGTH_BYTES = 4
NOW, NOT_NOW = b"now", b"not now"
"""Rank 0's word, once an update has ended, on whether the version that is due is published."""


@dataclass(frozen=True)
class Order:
    """The next steps of all ranks, in the order of the fields."""

    version: Version
    """The version that stands once the groups are trained"""
    groups: tuple[Group, ...] = ()
    """The groups of an update; none: nothing is trained"""
    reused: tuple[Group, ...] = ()
    """Groups of earlier updates that it trains again"""
    publish: bool = False
    save: bool = False
    """A checkpoint is begun"""
    export: bool = False
    """The final model is written, and the run marked finished"""


def send(team: Team, order: Order | None) -> None:
    """Rank 0: sends the next order to the other ranks; None says that no more orders follow."""
    if team.size > 1:
        team.send(encode(order) if order else b"")


def receive(team: Team) -> Order | None:
    """Waits for rank 0's next order. Raises `RankLostError`."""
    data = team.receive()
    return decode(data) if data else None


def encode(order: Order) -> bytes:
    groups = [group_codec.encode(group) for group in order.groups + order.reused]
    steps = {"publish": order.publish, "save": order.save, "export": order.export}
    sizes, first = [len(group) for group in groups], len(order.groups)
    header = orjson.dumps({"version": [*order.version], "sizes": sizes, "first": first, **steps})
    return b"".join([len(header).to_bytes(LENGTH_BYTES, "little"), header, *groups])


def decode(data: bytes) -> Order:
    start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    header: dict[str, Any] = orjson.loads(data[LENGTH_BYTES:start])
    groups = []
    for size in header.pop("sizes"):
        groups.append(group_codec.decode(data[start : start + size]))
        start += size
    first = header.pop("first")
    return Order(Version(*header.pop("version")), tuple(groups[:first]), tuple(groups[first:]), **header)
