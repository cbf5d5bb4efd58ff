"""How busy a learner is: its own updates, what the workers supply, and the waits for groups that come late.

All functions are pure; times are seconds. Supply is in units of what the learner consumes: u = Σμ · T_train / R, where
μ counts whole workers as they really run, and R is the groups of an update. docs/capacity.md says how near the bounds
are to a simulation, and that nothing but a simulation is good for S = 1 and 2.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

SOFTNESS = 12
"""Exponent of the soft maximum (1 + u⁻¹²)^(1/12), by which an update takes longer than each of two that are near."""
WINDOW_SHARE = 0.75
"""Share of the groups of S updates among which the slowest one decides; the rest leads to no further wait."""
SIMULATED_UP_TO = 2
"""The largest S for which these bounds are only a hint."""
PRECISION = 1e-12


class Path(NamedTuple):
    """The slowest way from an update to the groups that its weights have made.

    `away_s`: T_bcast, and the mean time of the slowest of so many groups (`window_groups`; S = 0: of a batch).
    `lead_s`: T_bcast, and half of a mean group's time; only S = 0 asks for it. `ways_s`: equally likely values of what
    `away_s` is the mean of; empty if it is always the same.
    """

    away_s: float
    lead_s: float = 0.0
    ways_s: tuple[float, ...] = ()

    def later(self, seconds: float) -> "Path":
        ways_s = tuple(way_s + seconds for way_s in self.ways_s)
        return Path(self.away_s + seconds, self.lead_s + seconds, ways_s)


def slowest(paths: Iterable[Path]) -> Path:
    """Returns a path of which each time is the longest of these paths, which have equally many ways."""
    away_s, lead_s, ways_s = zip(*paths, strict=True)
    return Path(max(away_s), max(lead_s), tuple(map(max, zip(*ways_s, strict=True))))


def window_groups(s: int, batch: int) -> float:
    """Returns the number of groups among which the slowest one decides how long S updates take; at S = 0 a batch."""
    return WINDOW_SHARE * s * batch if s else batch


def room_updates(s: int, kappa: int) -> float:
    """Returns S − κ/2: the updates within which weights arrive and become a group that is not too late, on average.

    A group that is due at update n needs the weights of update n − S. When it begins, the newest weights are T_bcast
    and up to κ updates old, half of that on average.
    """
    return s - kappa / 2


def staleness_bound(s: int, kappa: int, t_train_s: float, path: Path) -> float:
    """Returns y = (S − κ/2) · T_train / away, for S ≥ 1. Below 1 the slowest group is mostly late."""
    return room_updates(s, kappa) * t_train_s / path.away_s if path.away_s > 0 else math.inf


def utilisation(supply: float, s: int, kappa: int, t_train_s: float, path: Path) -> float:
    """Returns the share of its time for which the learner trains; checkpoints beside training take none of it.

    An update that waits for no late group takes P₀ = T_train · (1 + u⁻¹²)^(1/12). Of S updates the slowest group
    decides: if it comes later than the room (S − κ/2) · P₀, the learner waits for it, and all groups that are late by
    less come meanwhile. So an update takes P = P₀ + E[max(0, away − (S − κ/2) · P₀)] / S.
    """
    if supply <= 0:
        return 0.0
    if s == 0:
        return t_train_s / (t_train_s + max(path.away_s, t_train_s / supply + path.lead_s))
    least_s = t_train_s * _soft_most(1 / supply)
    room_s, ways_s = room_updates(s, kappa) * least_s, path.ways_s or (path.away_s,)
    late_s = sum(max(0.0, way_s - room_s) for way_s in ways_s) / len(ways_s)
    return t_train_s / (least_s + late_s / s)


def supply_needed(wanted: float, s: int, kappa: int, t_train_s: float, path: Path) -> float:
    """Returns the least supply with which the learner is busy for the share `wanted`; infinite if none suffices.

    It is the inverse of `utilisation`. At S = 0 nothing overlaps: an update, T_bcast and the batch follow one another,
    and the batch takes as long as its slowest group, or as the workers take for all of it and half a group more.
    The result is convex in what is added to all times of the path, upon which `echo_queue.capacity.plan.search` relies.
    """
    if s == 0:
        rest_s = t_train_s / wanted - t_train_s
        reachable = rest_s >= path.away_s and rest_s - path.lead_s > PRECISION
        return t_train_s / (rest_s - path.lead_s) if reachable else math.inf
    least_s = _period_without_waits(t_train_s / wanted, s, room_updates(s, kappa), path.ways_s or (path.away_s,))
    rest = (least_s / t_train_s) ** SOFTNESS - 1 if least_s > 0 else 0.0
    return float(rest ** (-1 / SOFTNESS)) if rest > PRECISION else math.inf


def _period_without_waits(period_s: float, s: int, room: float, ways_s: tuple[float, ...]) -> float:
    """Returns P₀ of P₀ + E[max(0, way − room · P₀)] / S = `period_s`, which grows with P₀ because room < S.

    It is a polygon: where the slowest n ways are late, P₀ · (1 − n·room/(N·S)) = period − Σ ways / (N·S).
    """
    each, late_s = 1 / (len(ways_s) * s), 0.0
    for late, way_s in enumerate(sorted(ways_s, reverse=True)):
        least_s = (period_s - late_s * each) / (1 - late * room * each)
        if way_s <= room * least_s:
            return least_s
        late_s += way_s
    return (period_s - late_s * each) / (1 - len(ways_s) * room * each)


def _soft_most(other: float) -> float:
    """Returns the soft maximum of 1 and another number, which is not negative."""
    most = max(1.0, other)
    return float(most * ((1 / most) ** SOFTNESS + (other / most) ** SOFTNESS) ** (1 / SOFTNESS))


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
