"""The figures of an evaluation: a mean reward with its interval, pass@k, and the difference of two models.

- The answers to one prompt are alike, so a prompt counts once: its standard error is that of the prompts' means, as if
  the prompts were drawn from many like them: it is clustered by prompt (Miller, "Adding Error Bars to Evals",
  arXiv 2411.00640).
- Prompts are finitely many, so an interval takes Student's t, with one degree of freedom less than there are prompts.
- Rewards that are all 0 or 1 are shares, and the interval is Wilson's, of as many independent answers as have the same
  standard error (Dean and Pagano, "Evaluating Confidence Interval Methods for Binomial Proportions in Clustered
  Surveys", 2015). With few prompts, or shares near 0 or 1, the usual one would be too short; without a failure it would
  have no length at all.
- Two models that answered the same prompts are compared prompt by prompt (paired, ibid.): what makes a prompt hard for
  both of them cancels out.
- pass@k is the estimator without bias of Chen et al., "Evaluating Large Language Models Trained on Code"
  (arXiv 2107.03374, equation 1).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev

import numpy as np

CONFIDENCE = 0.95
STEPS = 60
"""Bisections of a quarter turn: more would not change a float."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `prompts` prompts, and the interval that holds the true one in 95 of 100 evaluations.

    `low` and `high` are None for fewer than two prompts, which say nothing of how much prompts differ.
    """

    mean: float
    low: float | None
    high: float | None
    prompts: int


def mean_of(rewards: Sequence[Sequence[float]]) -> Estimate | None:
    """Returns the mean reward over prompts. `rewards`: those of each prompt's answers. None: there is no prompt.

    Raises `statistics.StatisticsError` for a prompt without answers.
    """
    found = _estimate([fmean(one) for one in rewards])
    binary = all(reward in (0, 1) for one in rewards for reward in one)
    return _wilson(found) if found and binary else found


def difference(first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]]) -> Estimate | None:
    """Returns by how much `second` is better than `first`: the rewards of two models, by prompt.

    Only prompts that both have answered count. None: there is none.
    """
    both = sorted(first.keys() & second.keys())
    return _estimate([fmean(second[prompt]) - fmean(first[prompt]) for prompt in both])


def _estimate(values: Sequence[float]) -> Estimate | None:
    """Returns the mean of independent values."""
    if not values:
        return None
    mean, count = fmean(values), len(values)
    if count == 1:
        return Estimate(mean, None, None, count)
    reach = t_quantile(count - 1) * stdev(values, mean) / math.sqrt(count)
    return Estimate(mean, mean - reach, mean + reach, count)


def _wilson(share: Estimate) -> Estimate:
    """Returns the estimate of a share with Wilson's interval."""
    if share.high is None:
        return share
    mean, prompts = share.mean, share.prompts
    t = t_quantile(prompts - 1)
    error = (share.high - mean) / t
    answers = mean * (1 - mean) / error**2 if error else prompts
    middle = (mean + t**2 / (2 * answers)) / (1 + t**2 / answers)
    reach = t / (1 + t**2 / answers) * math.sqrt(mean * (1 - mean) / answers + t**2 / (4 * answers**2))
    return replace(share, low=max(0.0, middle - reach), high=min(1.0, middle + reach))


def pass_at(rewards: Sequence[Sequence[float]], success: float) -> dict[int, float]:
    """Returns pass@k for k = 1, 2, 4, … up to the fewest answers of a prompt, in the mean over prompts.

    `success`: the least reward of an answer that succeeds.
    """
    fewest = min(map(len, rewards), default=0)
    counts = [(len(one), sum(reward >= success for reward in one)) for one in rewards]
    return {k: fmean(pass_at_k(*count, k) for count in counts) for k in _powers_of_two(fewest)}


def pass_at_k(answers: int, successes: int, k: int) -> float:
    """Returns the probability that at least one succeeds of k answers, drawn from `answers` with `successes`."""
    return 1 - math.comb(answers - successes, k) / math.comb(answers, k)


def _powers_of_two(most: int) -> Iterable[int]:
    return (1 << power for power in range(most.bit_length()))


@cache
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Returns the t within ±t of which lies `confidence` of Student's distribution with `freedom` degrees of freedom.

    It is found by bisection of the angle whose tangent is t/√freedom.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Returns the probability of ±t with t = √freedom · tan(angle).

    It is the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    odd = freedom % 2
    factors = np.arange(1 + odd, freedom - 2, 2)
    terms = np.cumprod(factors / (factors + 1) * math.cos(angle) ** 2)
    if not odd:
        return math.sin(angle) * (1 + float(terms.sum()))
    series = math.sin(angle) * math.cos(angle) * (1 + float(terms.sum())) if freedom > 1 else 0.0
    return 2 / math.pi * (angle + series)
