"""The cheapest path to a version, without a store."""

import random
from itertools import combinations

import pytest

from echo_queue.records import Version
from echo_queue.weights.cheapest_path import Edge, cheapest


def edge(base: int | None, version: int, size: int) -> Edge:
    return Edge(None if base is None else Version(0, base), Version(0, version), size)


def numbers(path: tuple[Edge, ...] | None) -> list[tuple[int | None, int]] | None:
    if path is None:
        return None
    return [(step.base.number if step.base else None, step.version.number) for step in path]


EDGES = [
    *(edge(number, number + 1, 10) for number in range(16)),
    *(edge(number, number + 2, 15) for number in range(0, 16, 2)),
    *(edge(number, number + 4, 22) for number in range(0, 16, 4)),
    edge(None, 0, 100),
    edge(None, 8, 100),
]


@pytest.mark.parametrize(
    ("have", "target", "path"),
    [
        (7, 8, [(7, 8)]),
        (8, 8, []),
        (5, 16, [(5, 6), (6, 8), (8, 12), (12, 16)]),
        (None, 9, [(None, 8), (8, 9)]),
        (None, 7, [(None, 0), (0, 4), (4, 6), (6, 7)]),
        (0, 16, [(0, 4), (4, 8), (8, 12), (12, 16)]),
        (99, 9, [(None, 8), (8, 9)]),
        (None, 17, None),
    ],
)
def test_the_cheapest_way_is_taken(have: int | None, target: int, path: list[tuple[int | None, int]] | None) -> None:
    start = None if have is None else Version(0, have)
    assert numbers(cheapest(EDGES, start, Version(0, target))) == path


def test_an_anchor_is_taken_once_it_is_cheaper_than_all_that_was_missed() -> None:
    edges = [edge(number, number + 1, 40) for number in range(8)] + [edge(None, 8, 100)]
    assert numbers(cheapest(edges, Version(0, 5), Version(0, 8))) == [(None, 8)]
    assert numbers(cheapest(edges, Version(0, 6), Version(0, 8))) == [(6, 7), (7, 8)]


def test_of_equals_the_fewest_routes_win() -> None:
    edges = [edge(0, 1, 10), edge(1, 2, 10), edge(0, 2, 20)]
    assert numbers(cheapest(edges, Version(0, 0), Version(0, 2))) == [(0, 2)]


def test_no_way_is_cheaper_than_the_one_that_was_found() -> None:
    """Against every path there is, on small random graphs."""
    chance = random.Random(0)
    for _ in range(200):
        count = chance.randint(2, 6)
        ends = [(base, version) for base, version in combinations(range(count), 2) if chance.random() < 0.6]
        edges = [edge(base, version, chance.randint(1, 50)) for base, version in ends]
        edges += [edge(None, version, chance.randint(20, 90)) for version in range(count) if chance.random() < 0.3]
        have, target = Version(0, chance.randrange(count)), Version(0, count - 1)
        found = cheapest(edges, have, target)
        costs = _all_costs(edges, have, target)
        assert (None if found is None else sum(step.size for step in found)) == (min(costs) if costs else None)


def _all_costs(edges: list[Edge], have: Version, target: Version) -> list[int]:
    costs: list[int] = []

    def go(here: Version | None, cost: int) -> None:
        if here == target:
            costs.append(cost)
            return
        for step in edges:
            if step.base == here:
                go(step.version, cost + step.size)

    go(have, 0)
    go(None, 0)
    return costs
