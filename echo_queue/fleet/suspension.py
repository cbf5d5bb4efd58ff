"""Machines of which all workers are suspended: the learner has found that they send nothing but bad groups.

- Such a machine costs and gives nothing: it is sent away, and replaced like one that is gone.
- It counts as a launch of its pool that failed, so the pool is asked again only after a pause that grows.
- A pool of which several machines, and more than serve now, were found so is not used: its image or its settings are
  bad. An operator's `reinstate`, or the next learner, which judges all workers anew, ends that.

All functions are pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from echo_queue.fleet.accounts import NO_SETBACK, setback
from echo_queue.fleet.state import Dismissal, Ending, Limits, Memory, Offer, State, Unworthy

MOST = 3
"""A pool is not used once so many of its machines were sent away, if these are more than serve."""


def sent_away(state: State, memory: Memory, offers: Mapping[str, Offer], limits: Limits, now_s: float) -> Memory:
    """Returns the memory, brought up to date before, without the machines that give nothing. A paused fleet keeps them.

    Of machines that are gone it forgets those whose workers are suspended no more.
    """
    suspended = {one.worker for one in state.suspensions}
    known = {name: one for name, one in memory.unworthy.items() if suspended.intersection(one.workers)}
    found = {} if state.paused else _found(state, offers, limits)
    setbacks = dict(memory.setbacks)
    for pool in sorted({one.pool for name, one in found.items() if name not in known}):
        setbacks[pool] = setback(setbacks.get(pool, NO_SETBACK), limits, now_s)
    return replace(
        memory,
        launches={name: launch for name, launch in memory.launches.items() if name not in found},
        dismissals={**{name: Dismissal(Ending.leave, now_s) for name in found}, **memory.dismissals},
        quiet={name: since for name, since in memory.quiet.items() if name not in found},
        serving=tuple(name for name in memory.serving if name not in found),
        setbacks=setbacks,
        unworthy={**known, **found},
    )


def unused(memory: Memory, serving: Mapping[str, int]) -> frozenset[str]:
    """Returns the pools that are not used. `serving`: the machines of each pool that serve."""
    pools = [one.pool for one in memory.unworthy.values()]
    return frozenset(pool for pool in pools if pools.count(pool) >= max(MOST, serving.get(pool, 0) + 1))


def told(memory: Memory, unused_pools: frozenset[str]) -> Iterator[str]:
    """Yields sentences about what is sent away and not used because of suspended workers, and why."""
    for pool in sorted({one.pool for one in memory.unworthy.values()}):
        names = sorted(name for name, one in memory.unworthy.items() if one.pool == pool)
        leaving = [name for name in names if name in memory.dismissals]
        if pool in unused_pools:
            why = f"the workers of {len(names)} of its machines were suspended: {memory.unworthy[names[-1]].why}"
            yield f"pool {pool} is not used until `echo-queue reinstate`, for {why}"
        elif leaving:
            why = f"their workers are suspended: {memory.unworthy[leaving[-1]].why}"
            yield f"{', '.join(leaving)} must go, for {why}"


def _found(state: State, offers: Mapping[str, Offer], limits: Limits) -> dict[str, Unworthy]:
    """Returns the machines of which a worker is suspended and no other one is heard."""
    pools = {one.name: one.pool for one in state.machines if one.pool in offers}
    working = {one.machine for one in state.workers if not one.suspended and one.silent_s <= limits.silent_s}
    found: dict[str, Unworthy] = {}
    for one in state.suspensions:
        if one.machine in pools and one.machine not in working:
            before = found[one.machine].workers if one.machine in found else ()
            found[one.machine] = Unworthy(pools[one.machine], (*before, one.worker), one.why)
    return found
