"""The rules of the curriculum as pure functions: what a prompt's rewards say of it, and which prompt is next.

The server goes by them in Lua (`library/curriculum.lua`), and tests compare the two. What is known of a prompt is two
bytes in Redis, which may be lost.

- MoPPS (arXiv 2507.04632): the success rate of a prompt has the posterior Beta(1 + successes, 1 + failures). Both
  counts are halved before each group's are added, because the policy changes. A rate is drawn for each candidate, and
  the candidate whose rate is nearest to 1/2 is taken.
- DoPR (arXiv 2602.00815): reward volatility and a bonus for exploration. Its formula is not public in full. Taken is
  the upper confidence bound with discounted counts (arXiv 0805.3415), on the deviation √(p (1 − p)) of a reward of
  mean p.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

Curriculum = Literal["off", "mopps", "dopr"]

LOOKED_AT = 8
"""Candidates among which each admitted prompt is chosen."""
TAKEN = 2
"""The cursor passes so many prompts for each that is admitted, until there are as many candidates as may be."""
KEPT_SHARE = 0.5
"""λ: what is left of earlier counts once a group is added."""
EXPLORATION = 0.25
"""The weight of DoPR's bonus. A prompt that was never tried comes before all that were."""
SAMPLES_MAX = 64


class Seen(NamedTuple):
    """The faded successes and failures of a prompt, each as a byte b that stands for (b / 16)² samples."""

    successes: int = 0
    failures: int = 0

    @property
    def counts(self) -> tuple[float, float]:
        return self.successes**2 / 256, self.failures**2 / 256

    def after(self, samples: int, reward: float, failure: float = 0.0, success: float = 1.0) -> "Seen":
        """Returns what is known after a group of this mean reward, which counts from `failure` to `success`."""
        share = min(1.0, max(0.0, (reward - failure) / (success - failure)))
        count, (successes, failures) = min(samples, SAMPLES_MAX), self.counts
        return Seen(_byte(KEPT_SHARE * successes + count * share), _byte(KEPT_SHARE * failures + count * (1 - share)))


UNSEEN = Seen()


def score(curriculum: Curriculum, seen: Seen, passed: int, uniform: Callable[[], float]) -> float:
    """Returns how much is expected of a prompt, by "mopps" or "dopr". `passed`: prompts that the cursor has passed."""
    successes, failures = seen.counts
    alpha, beta = 1 + successes, 1 + failures
    if curriculum == "mopps":
        a, b = gamma(alpha, uniform), gamma(beta, uniform)
        return -abs(a / (a + b) - 0.5)
    share = alpha / (alpha + beta)
    bonus = math.sqrt(math.log(1 + passed) / (1 + successes + failures))
    return math.sqrt(share * (1 - share)) + EXPLORATION * bonus


def choose(
    curriculum: Curriculum,
    candidates: Sequence[Seen],
    *,
    seed: int,
    name: str,
    passed: int,
) -> int:
    """Returns the place of the candidate that is admitted, among some that are drawn by the seed of the set `name`."""
    draw = uniform(f"{seed}:{name}:{passed}:{len(candidates)}")
    best, most = 0, -math.inf
    for _ in range(min(len(candidates), LOOKED_AT)):
        place = math.floor(draw() * len(candidates))
        found = score(curriculum, candidates[place], passed, draw)
        if found > most:
            best, most = place, found
    return best


def uniform(text: str) -> Callable[[], float]:
    """Returns a generator of numbers in (0, 1) that depend on `text` alone (Park and Miller 1988)."""
    state = int(hashlib.sha1(text.encode()).hexdigest()[:8], 16) % 2147483646 + 1

    def draw() -> float:
        nonlocal state
        state = state * 16807 % 2147483647
        return state / 2147483647

    return draw


def gamma(shape: float, uniform: Callable[[], float]) -> float:
    """Draws from the gamma distribution of that shape, which is at least 1 (Marsaglia and Tsang 2000)."""
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x = math.sqrt(-2 * math.log(uniform())) * math.cos(2 * math.pi * uniform())
        t = 1 + c * x
        v = t * t * t
        if math.log(uniform()) < (x * x / 2 + d - d * v + d * math.log(v) if v > 0 else -math.inf):
            return d * v


def _byte(value: float) -> int:
    return min(255, math.floor(16 * math.sqrt(value) + 0.5))
