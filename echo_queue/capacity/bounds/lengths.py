"""How long samples are, and so how long groups take: the tail of these times decides which groups come late.

Assumed: lengths are log-normal, their mean is `mean_tokens` before they are cut at `most_tokens`, and those of a group
are independent. Where all samples of a prompt are long together, a group has a shorter mean and a longer tail.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from statistics import NormalDist

TAIL = 0.99
"""The share of groups within the tail time. Of log-normal times with σ = 0.6 it is 3.4 times their mean."""
STEPS = 500
LIKELY = 24
"""Number of equally likely lengths that stand for a distribution."""
NORMAL = NormalDist()


@dataclass(frozen=True)
class Lengths:
    """Lengths of samples, in tokens. `spread`: σ of their logarithm."""

    mean_tokens: float
    spread: float
    most_tokens: float

    def quantile(self, share: float) -> float:
        """Returns the length that a share of all samples does not exceed, 0 < share < 1."""
        length = self.mean_tokens * exp(self.spread * NORMAL.inv_cdf(share) - self.spread**2 / 2)
        return min(self.most_tokens, length)

    def share_longer(self, tokens: float, samples: int) -> float:
        """Returns the share of groups of so many samples whose longest sample is longer than `tokens`."""
        if tokens >= self.most_tokens:
            return 0.0
        if tokens <= 0:
            return 1.0
        if self.spread == 0:
            return float(tokens < self.mean_tokens)
        place = (log(tokens / self.mean_tokens) + self.spread**2 / 2) / self.spread
        return 1 - NORMAL.cdf(place) ** samples

    def tail_of_longest(self, samples: int) -> float:
        """Returns the length that the longest of so many samples does not exceed, of the share `TAIL` of groups."""
        return self.quantile(TAIL ** (1 / samples))

    def mean_of_longest(self, samples: int) -> float:
        """Returns the mean length of the longest of so many samples, with which a group, or a batch, is done."""
        return _mean_of_longest(self, samples)

    def likely_longest(self, samples: float) -> tuple[float, ...]:
        """Returns `LIKELY` equally likely lengths of the longest of so many samples, rising."""
        return _likely_longest(self, samples)


def longest_shares(samples: float) -> tuple[float, ...]:
    """Returns the quantiles of one sample at which the longest of so many has its `LIKELY` equally likely values."""
    return tuple(((step + 0.5) / LIKELY) ** (1 / samples) for step in range(LIKELY))


@lru_cache
def _likely_longest(lengths: Lengths, samples: float) -> tuple[float, ...]:
    return tuple(map(lengths.quantile, longest_shares(samples)))


@lru_cache
def _mean_of_longest(lengths: Lengths, samples: int) -> float:
    """Integrates the quantile function of the longest sample, at the middles of equal steps."""
    return sum(lengths.quantile(((step + 0.5) / STEPS) ** (1 / samples)) for step in range(STEPS)) / STEPS
