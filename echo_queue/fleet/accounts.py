"""Brings a controller's memory up to date: which launches have come up or failed, who is silent, what was spent.

All functions are pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from echo_queue.fleet.state import Dismissal, Ending, Launch, Limits, Memory, Offer, Setback, State

LAUNCH_FACTOR, LAUNCH_MORE_S = 2.0, 120.0
"""A launch has failed after twice the time that a machine takes to serve, or two minutes more if that is longer."""
HOUR_S = 3_600.0
LOOK_S, LOOKS = 60.0, 3.0
"""The longest time between two decisions that counts as time in which the learner was seen to be silent or to stand
still, in seconds and in usual times between decisions: while nobody could look, nothing is known."""
NO_SETBACK = Setback(0, 0.0)


class Phase(StrEnum):
    """The state of a machine: it will serve, it serves, its workers are not heard, or it is being dismissed."""

    launching = "launching"
    serving = "serving"
    silent = "silent"
    leaving = "leaving"


@dataclass(frozen=True)
class Inventory:
    """The machines that exist or were asked for, by name: pool and phase. Pools without an offer are left alone."""

    pools: Mapping[str, str]
    phases: Mapping[str, Phase]
    prices: Mapping[str, float]

    def of(self, *phases: Phase) -> tuple[str, ...]:
        """Returns the machines in these phases, in the order of their names."""
        return tuple(sorted(name for name, phase in self.phases.items() if phase in phases))

    @property
    def usd_per_hour(self) -> float:
        """The price of all of them together."""
        return sum(self.prices[pool] for pool in self.pools.values())


def brought_up(state: State, offers: Mapping[str, Offer], limits: Limits, now_s: float) -> Memory:
    """Returns the memory with what has happened since the last decision."""
    memory, listed, heard = state.memory, _listed(state, offers), _heard(state, limits)
    launches, failed, gone = _launches(state, offers, now_s)
    setbacks = dict(memory.setbacks)
    for name, launch in memory.launches.items():
        if name in heard and now_s >= setbacks.get(launch.pool, NO_SETBACK).until_s:
            setbacks.pop(launch.pool, None)
    for pool in sorted({launch.pool for launch in failed.values()}):
        setbacks[pool] = setback(setbacks.get(pool, NO_SETBACK), limits, now_s)
    for pool in sorted({launch.pool for launch in gone.values()} - {launch.pool for launch in failed.values()}):
        before = setbacks.get(pool)
        setbacks[pool] = setback(before, limits, now_s) if before else Setback(1, now_s)
    failed |= gone
    ends = {name: Dismissal(Ending.end, now_s) for name in failed if name not in state.refused}
    quiet = {
        name: memory.quiet.get(name, now_s) for name in listed if name not in launches and name not in heard | set(ends)
    }
    lost = {name: Dismissal(Ending.end, now_s) for name, since in quiet.items() if now_s - since > limits.lost_s}
    dismissals = dict(_dismissals(state, listed, limits, now_s))
    serving = tuple(sorted(name for name in listed if name in heard and name not in dismissals))
    elapsed_s = now_s - (memory.counted_s if memory.counted_s is not None else now_s)
    silent_s, still_s = _standstill(state, min(elapsed_s, max(LOOK_S, LOOKS * limits.decision_s)))
    asked = {name: launch.pool for name, launch in memory.launches.items() if launch.pool in offers}
    rate = sum(offers[pool].usd_per_hour for pool in {**asked, **listed}.values())
    return replace(
        memory,
        launches=launches,
        dismissals={**lost, **ends, **dismissals},
        setbacks=setbacks,
        quiet={name: since for name, since in quiet.items() if name not in dismissals},
        serving=serving,
        starved=state.starved,
        steady_s=memory.steady_s if (serving, state.starved) == (memory.serving, memory.starved) else now_s,
        spent_usd=memory.spent_usd + rate * elapsed_s / HOUR_S,
        counted_s=now_s,
        silent_s=silent_s,
        still_s=still_s,
        figures=_highest(memory.figures, state.learner.figures),
    )


def inventory(state: State, memory: Memory, offers: Mapping[str, Offer]) -> Inventory:
    """Returns every machine with its phase, by a memory that was brought up to date."""
    pools = {name: launch.pool for name, launch in memory.launches.items()} | _listed(state, offers)
    pools = {name: pool for name, pool in pools.items() if pool in offers}
    phases = {}
    for name in pools:
        if name in memory.dismissals:
            phases[name] = Phase.leaving
        elif name in memory.launches:
            phases[name] = Phase.launching
        else:
            phases[name] = Phase.serving if name in memory.serving else Phase.silent
    return Inventory(pools, phases, {pool: offer.usd_per_hour for pool, offer in offers.items()})


def unreachable(state: State, found: Inventory, limits: Limits) -> bool:
    """Returns whether most machines have fallen silent at once: then what is between is broken, and not they."""
    known = {worker.machine for worker in state.workers if worker.silent_s > limits.silent_s}
    silent = [name for name in found.of(Phase.silent) if name in known]
    return len(silent) >= 2 and len(silent) > len(found.of(Phase.serving))


def _listed(state: State, offers: Mapping[str, Offer]) -> dict[str, str]:
    return {one.name: one.pool for one in state.machines if one.pool in offers}


def _heard(state: State, limits: Limits) -> set[str]:
    return {worker.machine for worker in state.workers if worker.serves and worker.silent_s <= limits.silent_s}


def _standstill(state: State, looked_s: float) -> tuple[float, float]:
    """Returns for how long the learner has not been heard, and has made no progress.

    One that begins again and again from the same checkpoint makes none, although it is heard in between. One that lacks
    groups stands still for want of workers.
    """
    memory, learner = state.memory, state.learner
    rises = _highest(memory.figures, learner.figures) != memory.figures
    gets_on = learner.heard and (rises or learner.lacks_groups)
    return 0.0 if learner.heard else memory.silent_s + looked_s, 0.0 if gets_on else memory.still_s + looked_s


def _highest(before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(max, before, now)) if before else now


def _launches(
    state: State, offers: Mapping[str, Offer], now_s: float
) -> tuple[dict[str, Launch], dict[str, Launch], dict[str, Launch]]:
    """Returns the launches that are still under way, those that have failed, and those whose machines are gone."""
    under_way: dict[str, Launch] = {}
    failed: dict[str, Launch] = {}
    gone: dict[str, Launch] = {}
    listed = {machine.name for machine in state.machines}
    heard = {worker.machine for worker in state.workers if worker.serves}
    for name, launch in state.memory.launches.items():
        if name in heard or launch.pool not in offers:
            continue
        boot_s = offers[launch.pool].boot_s
        if now_s - launch.asked_s > max(LAUNCH_FACTOR * boot_s, boot_s + LAUNCH_MORE_S) or name in state.refused:
            failed[name] = launch
        elif launch.listed and name not in listed:
            gone[name] = launch
        else:
            under_way[name] = replace(launch, listed=launch.listed or name in listed)
    return under_way, failed, gone


def setback(before: Setback, limits: Limits, now_s: float) -> Setback:
    """Returns the setback of a pool after a further failure."""
    failures = before.failures + 1
    pause_s = min(limits.setback_s * 2.0 ** (failures - 1), limits.longest_setback_s)
    return Setback(failures, now_s + pause_s)


def _dismissals(
    state: State, listed: Mapping[str, str], limits: Limits, now_s: float
) -> Iterator[tuple[str, Dismissal]]:
    """Yields the dismissals that go on. A machine that was ended and never listed may still come up for a while."""
    present = {worker.machine for worker in state.workers if worker.silent_s <= limits.silent_s}
    for name, dismissal in state.memory.dismissals.items():
        passed_s = now_s - dismissal.since_s
        if name not in listed:
            if dismissal.stage is Ending.end and passed_s < limits.lost_s:
                yield name, dismissal
        elif dismissal.stage is Ending.end:
            yield name, dismissal
        elif name not in present or (dismissal.stage is Ending.leave and passed_s >= limits.leave_s):
            yield name, Dismissal(Ending.end, now_s)
        elif dismissal.stage is Ending.rest and passed_s >= limits.rest_s:
            yield name, Dismissal(Ending.leave, now_s)
        else:
            yield name, dismissal
