"""Finds the cheapest path to a version: the fewest bytes and, among equals, the fewest routes. It reads no store."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from echo_queue.records import Version


@dataclass(frozen=True)
class Edge:
    """A route from `base` (None: from nothing) to `version`, and the bytes it costs."""

    base: Version | None
    version: Version
    size: int


def cheapest(edges: Iterable[Edge], have: Version | None, target: Version) -> tuple[Edge, ...] | None:
    """Returns the cheapest path from `have`, or from nothing, to `target`.

    The path is empty if `target` is `have`, and None if there is none.
    """
    edges_from: dict[Version | None, list[Edge]] = {}
    for edge in edges:
        edges_from.setdefault(edge.base, []).append(edge)
    starts = {None, have}
    waiting: list[tuple[int, int, int, Version | None, tuple[Edge, ...]]]
    waiting = [(0, 0, number, start, ()) for number, start in enumerate(starts)]
    pushed, reached = len(waiting), set[Version | None]()
    while waiting:
        cost, hops, _, here, path = heapq.heappop(waiting)
        if here == target:
            return path
        if here in reached:
            continue
        reached.add(here)
        for edge in edges_from.get(here, ()):
            pushed += 1  # breaks ties, so that versions and paths are never compared
            heapq.heappush(waiting, (cost + edge.size, hops + 1, pushed, edge.version, (*path, edge)))
    return None
