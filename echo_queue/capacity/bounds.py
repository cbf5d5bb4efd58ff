"""The least of three bounds says how busy a learner is: what the workers supply, the learner itself, and staleness.

All functions are pure; times are seconds. Supply is in units of what the learner consumes: u = Σμ · T_train / R, where
μ counts whole workers as they really run, and R is the groups of an update. docs/capacity.md says how near the bounds
are to a simulation, and that nothing but a simulation is good for S = 1 and 2.
"""

import math
from typing import NamedTuple

SOFTNESS = 8
"""Exponent of the soft minimum (Σ x⁻⁸)^(−1/8): two equal bounds of 1 make 0.92, three 0.87."""
UNPUBLISHED = 0.5
"""Share of the κ − 1 updates without a publication by which weights are older when they are fetched."""
SIMULATED_UP_TO = 2
"""The largest S for which these bounds are only a hint."""
PRECISION = 1e-12


class Path(NamedTuple):
    """The slowest way from an update to a group that its weights have made.

    `away_s`: T_bcast, and the time of a group of the tail (S = 0: of the slowest of a batch). `lead_s`: T_bcast, and
    half of a mean group's time; only S = 0 asks for it.
    """

    away_s: float
    lead_s: float = 0.0

    def later(self, seconds: float) -> "Path":
        return Path(self.away_s + seconds, self.lead_s + seconds)


def soft_least(*bounds: float) -> float:
    """Returns the soft minimum of bounds, which may be infinite; 0 if one of them is not positive."""
    least = min(bounds)
    if least <= 0:
        return 0.0
    if least == math.inf:
        return math.inf
    return float(least * sum((least / bound) ** SOFTNESS for bound in bounds) ** (-1 / SOFTNESS))


def staleness_bound(s: int, kappa: int, t_train_s: float, path: Path) -> float:
    """Returns y = (S − 0.5(κ − 1)) · T_train / away, for S ≥ 1.

    A group that is due at update n needs the weights of update n − S. They are published up to κ − 1 updates later,
    and must arrive and become a group within the S updates.
    """
    return (s - UNPUBLISHED * (kappa - 1)) * t_train_s / path.away_s if path.away_s > 0 else math.inf


def utilisation(supply: float, s: int, kappa: int, t_train_s: float, path: Path) -> float:
    """Returns the share of its time for which the learner trains; checkpoints beside training take none of it."""
    if supply <= 0:
        return 0.0
    if s == 0:
        return t_train_s / (t_train_s + max(path.away_s, t_train_s / supply + path.lead_s))
    return soft_least(supply, 1.0, staleness_bound(s, kappa, t_train_s, path))


def supply_needed(wanted: float, s: int, kappa: int, t_train_s: float, path: Path) -> float:
    """Returns the least supply with which the learner is busy for the share `wanted`; infinite if none suffices.

    It is the inverse of `utilisation`. At S = 0 nothing overlaps: an update, T_bcast and the batch follow one another,
    and the batch takes as long as its slowest group, or as the workers take for all of it and half a group more.
    The result is convex in what is added to both times of the path, upon which `echo_queue.capacity.search` relies.
    """
    if s == 0:
        rest_s = t_train_s / wanted - t_train_s
        reachable = rest_s >= path.away_s and rest_s - path.lead_s > PRECISION
        return t_train_s / (rest_s - path.lead_s) if reachable else math.inf
    bound = staleness_bound(s, kappa, t_train_s, path)
    if bound <= wanted:
        return math.inf
    rest = wanted**-SOFTNESS - 1 - bound**-SOFTNESS
    return float(rest ** (-1 / SOFTNESS)) if rest > PRECISION else math.inf


def serial_utilisation(supply: float, kappa: int, *, t_train_s: float, t_bcast_s: float) -> float:
    """Returns the utilisation by the serial reading of ECHO-2's overlap condition (arXiv 2602.02192).

    Over κ updates the learner consumes κR groups, of which none is generated while weights travel: it stalls for
    κR / Σμ + T_bcast − κT_train. At κ = 1 this is far too low here, because workers go on with older weights meanwhile.
    """
    if supply <= 0:
        return 0.0
    period_s = kappa * t_train_s
    return period_s / max(period_s, period_s / supply + t_bcast_s)


def serial_supply_needed(kappa: int, *, t_train_s: float, t_bcast_s: float) -> float:
    """Returns the supply that the serial reading asks: κT_train / (κT_train − T_bcast); infinite if none suffices."""
    rest_s = kappa * t_train_s - t_bcast_s
    return kappa * t_train_s / rest_s if rest_s > 0 else math.inf
