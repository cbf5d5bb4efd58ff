"""The work of each prompt's group, and the losses of machines, drawn from a seed.

A group's work is its generation time on a machine of speed 1. It belongs to the prompt: a group that is generated again
takes as long as the first time, because hard prompts stay hard.
"""

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from echo_queue.capacity.simulation.setting import Generation, Pool, Setting
from echo_queue.capacity.simulation.world import Loss

DRAWN_AT_ONCE = 4096
HOUR_S = 3600.0
WORK, LOSSES, PICK = 0, 1, 2
"""The streams of random numbers of one seed."""


class GroupWork:
    """The work of each prompt's group, in seconds. It is drawn in blocks, so any prompt can be asked for at any time.

    `measured_s`: the generation times from which an empirical tail is drawn.
    """

    def __init__(self, generation: Generation, measured_s: Sequence[float], seed: int) -> None:
        self._generation, self._seed = generation, seed
        self._measured_s = np.array(measured_s)
        self._blocks: dict[int, list[float]] = {}

    def __call__(self, prompt: int) -> float:
        number, place = divmod(prompt, DRAWN_AT_ONCE)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = self._draw(number)
        return block[place]

    def _draw(self, number: int) -> list[float]:
        draw = np.random.default_rng((self._seed, WORK, number))
        return [float(seconds) for seconds in np.minimum(self._seconds(draw), self._generation.longest_s)]

    def _seconds(self, draw: np.random.Generator) -> NDArray[np.float64]:
        setting, mean_s = self._generation, self._generation.mean_s
        match setting.tail:
            case "constant":
                return np.full(DRAWN_AT_ONCE, mean_s)
            case "log-normal":
                return mean_s * np.exp(setting.sigma * draw.normal(size=DRAWN_AT_ONCE) - setting.sigma**2 / 2)
            case "pareto":
                least_s = mean_s * (setting.alpha - 1) / setting.alpha
                return least_s * (1 + draw.pareto(setting.alpha, DRAWN_AT_ONCE))
            case "empirical":
                return draw.choice(self._measured_s, DRAWN_AT_ONCE)


def losses(setting: Setting, files: Sequence[Sequence[tuple[float, int]]], seed: int) -> Iterator[Loss]:
    """Yields the losses of all pools in order of time. `files`: for each pool the seconds and machines of its file."""
    streams: list[Iterator[Loss]] = []
    for number, pool in enumerate(setting.pools):
        streams += [
            _at_random(number, pool, seed),
            _in_bursts(number, pool, seed),
            (Loss(at_s, number, machines) for at_s, machines in files[number]),
        ]
    return heapq.merge(*streams, key=lambda loss: (loss.at_s, loss.pool))


def _at_random(number: int, pool: Pool, seed: int) -> Iterator[Loss]:
    """Yields single losses, at a rate that does not change (a Poisson process)."""
    rate = pool.losses_per_machine_hour * pool.machines / HOUR_S
    draw, at_s = np.random.default_rng((seed, LOSSES, number, 0)), 0.0
    while rate > 0:
        at_s += float(draw.exponential(1 / rate))
        yield Loss(at_s, number, 1)


def _in_bursts(number: int, pool: Pool, seed: int) -> Iterator[Loss]:
    """Yields bursts: a share of the pool's machines, one after the other within a few minutes."""
    rate, size = pool.bursts_per_hour / HOUR_S, max(1, round(pool.burst_share * pool.machines))
    draw, at_s = np.random.default_rng((seed, LOSSES, number, 1)), 0.0
    while rate > 0:
        at_s += float(draw.exponential(1 / rate))
        for after_s in sorted(draw.uniform(0, pool.burst_within_s, size).tolist()):
            yield Loss(at_s + after_s, number, 1)
        at_s += pool.burst_within_s


class Pick:
    """Draws one of so many."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng((seed, PICK))

    def __call__(self, most: int) -> int:
        return int(self._draw.integers(most))
