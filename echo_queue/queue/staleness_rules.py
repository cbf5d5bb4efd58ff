"""The rules of staleness as pure functions: when a group is due, which versions may generate it, and the window.

The server enforces the bound S in Lua (`library/`): `admit` of `backlog.lua`, `lease` of `leasing.lua`, `complete` of
`completion.lua`, `drain`, `pending` and `advance` of `learner.lua`. Tests compare these moves with the functions here.
The learner checks each group once more (`admissible`) and sets the window (`pace`). Versions and lags count optimizer
updates; windows count batches.
"""

import math
from collections.abc import Mapping

from echo_queue.records import Version

WIDEN = 0.25
NARROW = 0.05
WAITED_SHARE = 0.005
"""The window widens if the learner waited longer than this share of an update."""


def due(v: int, untrained: int, batch: int) -> int:
    """Returns the update that trains the next group admitted, with `untrained` groups before it: v + floor(n/B)."""
    return v + untrained // batch


def min_pv(v: int, untrained: int, batch: int, s: int) -> int:
    """Returns the oldest version that may generate the next group admitted: its lag is then at most `s` when due."""
    return max(0, due(v, untrained, batch) - s)


def within_bound(oldest: int, published: int | None) -> bool:
    """Returns whether a group may be admitted: the oldest version that may generate it is published already."""
    return published is not None and oldest <= published


def within_window(untrained: int, batch: int, window: float) -> bool:
    """Returns whether the pace allows another group beside `untrained` ones: n < w·B."""
    return untrained < window * batch


def kappa_needed(t_bcast_s: float, t_train_s: float) -> int:
    """Returns κ = max(1, ⌈T_bcast / T_train⌉), the smallest period of publications that dissemination sustains."""
    return max(1, math.ceil(t_bcast_s / max(t_train_s, 1e-6)))


def needed(v: int, min_pv: int, published: int, s: int) -> int:
    """Returns the oldest version that may generate a group which is leased now.

    Weights older than v − S are too late by now; newer ones than published cannot be had.
    """
    return min(published, max(min_pv, v - s))


def admissible(v: int, oldest: int, s: int) -> bool:
    """Returns whether a group whose oldest token is of version `oldest` may be trained by the update after `v`."""
    return v - oldest <= s


def abandoned(version: Version, forks: Mapping[int, Version]) -> bool:
    """Returns whether today's weights, those of the last lineage, do not descend from `version`.

    `forks`: each lineage and the checkpoint at which it began. The weights at which a lineage began count as its
    parent's; a lineage whose fork is not known has no ancestors.
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
    """Returns the next window in batches, from the experience of one update: at least 1, at most `widest`.

    `widest`: S + 1 suffices. `waited_s`: how long the learner waited for its batch. `ready_after`: groups that stood
    ready once the batch had been drained. The constants come from a simulation over capacities and bounds.
    """
    if waited_s > WAITED_SHARE * t_train_s:
        window += WIDEN
    elif ready_after > batch / 4:
        window -= NARROW
    return float(min(max(window, 1.0), max(widest, 1.0)))
