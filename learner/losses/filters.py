"""Samples that are too far from the policy to teach it, found by all of their tokens' ratios.

The rest of the update keeps its weight: the loss is divided by the same number, whether a sample is filtered or not.
"""

from torch import Tensor

from learner.losses.log_ratio import of_tokens, sample_sums


def outside(log_ratio: Tensor, lengths: Tensor, low: float, high: float) -> Tensor:
    """Returns the tokens [K] of samples whose geometric mean of ρ lies outside of low … high.

    Geometric sequence masking (arXiv 2512.23075). `log_ratio` [K] is log ρ, `lengths` [R] the tokens of each sample.
    """
    means = (sample_sums(log_ratio.detach(), lengths) / lengths.clamp(min=1)).exp()
    return of_tokens((means < low) | (means > high), lengths, len(log_ratio))


def worse_and_far(log_ratio: Tensor, advantages: Tensor, lengths: Tensor, most: float) -> Tensor:
    """Returns the tokens [K] with A < 0 of samples whose mean of log μ − log π is larger than `most`.

    Off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556, §3.1). All tokens of a sample have its advantage.
    """
    means = -sample_sums(log_ratio.detach(), lengths) / lengths.clamp(min=1)
    return of_tokens(means > most, lengths, len(log_ratio)) & (advantages < 0)
