"""The events of a simulation, drawn from a seed: the work of groups, the losses of machines, and which are slow.

A group's work belongs to its prompt: one that is generated again takes as long as the first time, because hard prompts
stay hard.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from echo_queue.capacity.bounds.lengths import Lengths
from echo_queue.capacity.bounds.offers import HOUR_S
from echo_queue.capacity.simulation.measured_files import read_losses
from echo_queue.capacity.simulation.world import Events, Loss, SimulatedPool

DRAWN_AT_ONCE = 4096
NEARLY_NONE = 1e-9
"""The least share of groups whose work is told apart."""
WORK, LOSSES, PICK, STRAGGLERS = 0, 1, 2, 3
"""The streams of random numbers of one seed."""


class GroupWork:
    """The work of each prompt's group: the longest of so many samples, in the unit of their lengths.

    It is drawn in blocks, so any prompt can be asked for at any time. `measured`: lengths of groups of which it is
    drawn instead.
    """

    def __init__(self, lengths: Lengths, samples: int, seed: int, measured: Sequence[float] = ()) -> None:
        self._lengths, self._samples, self._seed, self._measured = lengths, samples, seed, measured
        self._blocks: dict[int, list[float]] = {}

    def __call__(self, prompt: int) -> float:
        number, place = divmod(prompt, DRAWN_AT_ONCE)
        if number not in self._blocks:
            self._blocks[number] = self._draw(number)
        return self._blocks[number][place]

    def _draw(self, number: int) -> list[float]:
        draw = np.random.default_rng((self._seed, WORK, number))
        if self._measured:
            return [float(length) for length in draw.choice(self._measured, DRAWN_AT_ONCE)]
        shares = np.clip(draw.random(DRAWN_AT_ONCE), NEARLY_NONE, 1 - NEARLY_NONE).tolist()
        # Not an array's power: its last bit depends on the processor, and by it all that comes after in a simulation.
        return [self._lengths.quantile(share ** (1 / self._samples)) for share in shares]


def events(pools: Sequence[SimulatedPool], work: Callable[[int], float], seed: int) -> Events:
    """Returns all that chance decides. Raises `ConfigError` for a file of losses that cannot be read."""
    pick = np.random.default_rng((seed, PICK))

    def slowness(pool: int, machine: int) -> float:
        churn = pools[pool].churn
        slow = np.random.default_rng((seed, STRAGGLERS, pool, machine)).random() < churn.stragglers
        return 1 / churn.straggler_speed if slow else 1.0

    return Events(work, _losses(pools, seed), lambda most: int(pick.integers(most)), slowness)


def _losses(pools: Sequence[SimulatedPool], seed: int) -> Iterator[Loss]:
    """Returns the losses of all pools in order of time."""
    streams: list[Iterator[Loss]] = []
    for number, pool in enumerate(pools):
        file = pool.churn.losses_file
        noted = [Loss(at_s, number, machines) for at_s, machines in read_losses(file)] if file else []
        streams += [_at_random(number, pool, seed), _in_bursts(number, pool, seed), iter(noted)]
    return heapq.merge(*streams, key=lambda loss: (loss.at_s, loss.pool))


def _at_random(number: int, pool: SimulatedPool, seed: int) -> Iterator[Loss]:
    """Yields single losses, at a rate that does not change (a Poisson process)."""
    rate = pool.losses_per_hour * pool.machines / HOUR_S
    draw, at_s = np.random.default_rng((seed, LOSSES, number, 0)), 0.0
    while rate > 0:
        at_s += float(draw.exponential(1 / rate))
        yield Loss(at_s, number, 1)


def _in_bursts(number: int, pool: SimulatedPool, seed: int) -> Iterator[Loss]:
    """Yields bursts: a share of the pool's machines, one after the other within a few minutes."""
    churn = pool.churn
    rate, size = churn.bursts_per_hour / HOUR_S, max(1, round(churn.burst_share * pool.machines))
    draw, at_s = np.random.default_rng((seed, LOSSES, number, 1)), 0.0
    while rate > 0:
        at_s += float(draw.exponential(1 / rate))
        for after_s in sorted(draw.uniform(0, churn.burst_within_s, size).tolist()):
            yield Loss(at_s + after_s, number, 1)
        at_s += churn.burst_within_s
