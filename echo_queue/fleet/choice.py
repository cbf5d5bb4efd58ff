"""The cheapest whole machines with enough supply, within the caps, found exactly by `scipy.optimize.milp` (HiGHS).

`echo_queue.capacity.plan.search` answers the same question for a fleet that is not rented yet, with the staleness bound
in it. Here the supply that is needed is one number, machines that are there may have to stay, and where the caps leave
too little, the most supply that they allow is the answer.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from echo_queue.capacity.plan.integer_program import constraint, solve

NEXT_TO_NOTHING = 1e-6
"""Weight of the price where as much supply as possible is wanted, so that of equal supplies the cheaper is taken."""


class Choosable(NamedTuple):
    """Machines of a pool. At least `least` and at most `most` of them are taken."""

    pool: str
    usd_per_hour: float
    supply: float
    least: int
    most: int


class Caps(NamedTuple):
    """The limits of all machines together."""

    usd_per_hour: float
    machines: int


@lru_cache(maxsize=4096)
def affordable(pools: tuple[Choosable, ...], needed: float, caps: Caps) -> tuple[int, ...] | None:
    """Returns the number of machines of each pool; None if `least` alone is above the caps.

    If the caps allow less supply than is needed, it is the set with the most supply.
    Raises `ConfigError` without scipy.
    """
    if not pools:
        return ()
    price = np.array([one.usd_per_hour for one in pools])
    supply = np.array([one.supply for one in pools])
    enough = _solve(price, pools, [*_caps(pools, caps), constraint(supply[None], least=needed)])
    return enough or _solve(NEXT_TO_NOTHING * price - supply, pools, _caps(pools, caps))


def _caps(pools: Sequence[Choosable], caps: Caps) -> list[Any]:
    price = np.array([one.usd_per_hour for one in pools])
    return [
        constraint(np.ones((1, len(pools))), most=float(caps.machines)),
        constraint(price[None], most=caps.usd_per_hour),
    ]


def _solve(cost: Any, pools: Sequence[Choosable], constraints: list[Any]) -> tuple[int, ...] | None:
    lower, upper = [one.least for one in pools], [max(one.least, one.most) for one in pools]
    found = solve(cost, constraints, lower=lower, upper=upper)
    return None if found is None else tuple(int(count) for count in found)
