"""The supply that a machine is believed to give: what was planned, corrected by what the queue has really got.

Workers say themselves how fast they are, and one may lie or err. So a pool is judged by the median of its machines,
machines far from it get no credit, and the sum of all claims is held against what the queue has accepted. All of this
waits until the same machines have served for a while. While the learner does not wait, workers may be idle, and rates
are then only lower bounds. All functions are pure.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from statistics import median_low

from echo_queue.fleet.state import Limits, Memory, Offer, State

TOO_FAST, TOO_SLOW = 3.0, 0.25
"""A machine beyond these multiples of its pool's median gets no credit."""
NOISE, NOISE_OF_ONE = 0.05, 0.15
"""A pace that differs by less from the one planned, or known, is taken for the same: of many machines, and of one."""
CREDIBLE = 1.25
"""Claims that add up to more than so many times what the queue has got raise no pool's pace."""
FEW = 3
"""A median of fewer machines judges none of them."""
SLOWEST_PACE, FASTEST_PACE = 0.1, 2.0
LEAST_TRUST, TRUST_STEP = 0.1, 0.8
"""Trust falls by one step for each set of machines, so that one bad measurement does not rent a second fleet."""


def judged(state: State, memory: Memory, offers: Mapping[str, Offer], limits: Limits, now_s: float) -> Memory:
    """Returns the memory with what the rates of now say about pools and machines."""
    doubted = memory.doubted & {machine.name for machine in state.machines}
    memory = replace(memory, doubted=doubted)
    if state.made is None or now_s - memory.steady_s < limits.measure_s or not memory.serving:
        return memory
    memory = _pools_judged(state, state.made, memory, offers)
    believed = sum(credit(name, pool, memory, offers) for name, pool in _serving(state, memory, offers).items())
    share = state.made * memory.trust / believed if believed > 0 else 1.0
    if not state.starved:
        return replace(memory, trust=min(1.0, max(memory.trust, share)))
    trust = min(1.0, max(share, TRUST_STEP * memory.trust, LEAST_TRUST))
    return replace(memory, trust=trust, steady_s=now_s if trust < memory.trust else memory.steady_s)


def unit(pool: str, memory: Memory, offers: Mapping[str, Offer]) -> float:
    """Returns the supply of a machine of this pool about which nothing else is known."""
    return offers[pool].supply * memory.pace.get(pool, 1.0) * memory.trust


def credit(name: str, pool: str, memory: Memory, offers: Mapping[str, Offer]) -> float:
    """Returns the supply of a machine that serves."""
    return 0.0 if name in memory.doubted else unit(pool, memory, offers)


def _serving(state: State, memory: Memory, offers: Mapping[str, Offer]) -> dict[str, str]:
    serving = set(memory.serving)
    return {one.name: one.pool for one in state.machines if one.name in serving and one.pool in offers}


def _pools_judged(state: State, made: float, memory: Memory, offers: Mapping[str, Offer]) -> Memory:
    claims: dict[str, float] = defaultdict(float)
    for worker in state.workers:
        if worker.rate is not None:
            claims[worker.machine] += worker.rate
    pace, doubted = dict(memory.pace), set(memory.doubted)
    by_pool: dict[str, list[str]] = defaultdict(list)
    for name, pool in _serving(state, memory, offers).items():
        if name in claims:
            by_pool[pool].append(name)
    for pool, names in by_pool.items():
        middle = median_low(claims[name] for name in names)
        if middle <= 0:
            continue
        if len(names) >= FEW:
            doubted |= {name for name in names if claims[name] > TOO_FAST * middle}
            doubted |= {name for name in names if state.starved and claims[name] < TOO_SLOW * middle}
        seen = min(FASTEST_PACE, max(SLOWEST_PACE, middle / offers[pool].supply))
        noise = max(NOISE, NOISE_OF_ONE / math.sqrt(len(names)))
        seen = 1.0 if abs(seen - 1.0) <= noise else seen
        if abs(seen - pace.get(pool, 1.0)) <= noise * pace.get(pool, 1.0) and seen != 1.0:
            continue
        if state.starved:
            pace[pool] = seen
        elif sum(claims.values()) <= CREDIBLE * made:
            pace[pool] = max(pace.get(pool, 1.0), seen)
    return replace(memory, pace=pace, doubted=frozenset(doubted))
