"""The events of a run, drawn from a seed: the length of each sample, and the times at which machines are taken.

The lengths of prompts are log-normal, and so are those of samples around their prompt's, cut off at the limit. Most are
short, a few take as long as hundreds of others, and hard prompts are hard for all their samples.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson

SHORTEST = 4


@dataclass(frozen=True)
class Trace:
    """Lengths in tokens; `prompt_spread` and `sample_spread` are standard deviations of their logarithm."""

    seed: int
    samples: int
    """Samples of a group."""
    longest: int
    median: float = 80.0
    prompt_spread: float = 1.2
    sample_spread: float = 0.5

    @classmethod
    def read(cls, path: Path) -> "Trace":
        return cls(**orjson.loads(path.read_bytes()))

    def write(self, path: Path) -> None:
        path.write_bytes(orjson.dumps(self))

    def taking(self, steps: float) -> "Trace":
        """Returns the trace with another median, by which an engine takes so many steps for a group on average."""
        found = self
        for _ in range(5):  # the limits of lengths bend the mean
            mean = statistics.fmean(found.steps(index) for index in range(400))
            found = replace(found, median=found.median * steps / mean)
        return found

    def steps(self, index: int) -> int:
        """Returns the steps of the group of prompt `index`, which ends with its longest sample.

        A worker that has room leases during one step and begins with the next one.
        """
        return max(self.lengths(index)) + 1

    def lengths(self, index: int) -> list[int]:
        """Returns the lengths of the samples of prompt `index`."""
        draw = np.random.default_rng((self.seed, index))
        deviation = self.prompt_spread * draw.normal() + self.sample_spread * draw.normal(size=self.samples)
        return [int(length) for length in np.clip(self.median * np.exp(deviation), SHORTEST, self.longest)]

    def losses(self, machines: int, every_s: float) -> Iterator[tuple[float, int]]:
        """Yields seconds since the start and the machine taken then: one in each `every_s`, without end."""
        draw, number = np.random.default_rng((self.seed, 1 << 32)), 0
        while True:
            yield every_s * (number + float(draw.random())), int(draw.integers(machines))
            number += 1
