"""Staleness as pure functions: when a group is due, what may generate it, and how wide the window is.

The queue's Lua library decides the same things on the server; these functions are what its tests compare
it with. Versions and lags count optimizer updates, windows count batches.
"""

import math
from collections.abc import Mapping

from echo_queue.records import Version

WIDEN = 0.25
NARROW = 0.05
WAITED_SHARE = 0.005
"""A wait longer than this share of an update is one that pacing must answer."""


def due(v: int, untrained: int, batch: int) -> int:
    """The update that trains the next group admitted, with `untrained` groups before it: v + floor(n/B)."""
    return v + untrained // batch


def min_pv(v: int, untrained: int, batch: int, s: int) -> int:
    """The oldest version that may generate the next group admitted, so that its lag is at most `s` when due."""
    return max(0, due(v, untrained, batch) - s)


def admissible(v: int, oldest: int, s: int) -> bool:
    """Whether a group whose oldest token is of version `oldest` may be trained by the update after `v`."""
    return v - oldest <= s


def abandoned(version: Version, forks: Mapping[int, Version]) -> bool:
    """Whether today's weights, those of the last lineage, do not descend from `version`.

    `forks`: each lineage and the checkpoint at which it began. Weights with which a lineage began are its parent's; a
    fork that is not known has no ancestors.
    """
    line, bound = max(forks, default=version.lineage), math.inf
    if version.lineage == line:
        return False
    lineage, number = version
    while lineage in forks and number <= forks[lineage].number:
        lineage = forks[lineage].lineage
    while line > lineage:
        if line not in forks:
            return True
        line, bound = forks[line].lineage, min(bound, forks[line].number)
    return line != lineage or number > bound


def pace(
    window: float, waited_s: float, t_train_s: float, ready_after: int, batch: int, *, widest: float = math.inf
) -> float:
    """The next window in batches, from one update's experience; at least 1, at most `widest` (S + 1 suffices).

    `waited_s`: how long the learner waited for its batch; `ready_after`: groups that stood ready
    once it had been drained. The constants are those of a simulation over capacities and bounds.
    """
    if waited_s > WAITED_SHARE * t_train_s:
        window += WIDEN
    elif ready_after > batch / 4:
        window -= NARROW
    return float(min(max(window, 1.0), max(widest, 1.0)))
