"""Ratios of the learner's policy to another, as logarithms: of tokens, and of the samples that they belong to.

A micro-batch holds each of its samples whole, so what concerns a sample needs no other micro-batch and no other rank.
"""

import torch
from torch import Tensor

from echo_queue.config.corrections import Level

LOG_RATIO_LIMIT = 20.0
"""Beyond this limit exp() is meaningless; without it a single absurd token overflows the whole update."""


def bounded(log_ratio: Tensor) -> Tensor:
    """Returns the log-ratios within ±`LOG_RATIO_LIMIT`; what lies beyond has no gradient."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def at_level(log_ratio: Tensor, lengths: Tensor, level: Level) -> Tensor:
    """Returns the log-ratio [K] that each token is corrected by; `log_ratio` [K] is that of the tokens themselves.

    "token": its own; "sequence": log s = (1/T) Σ log ρ over its sample (GSPO, arXiv 2507.18071, eq. 7); "product":
    Σ log ρ, which is the sample's importance weight. `lengths` [R]: tokens of each sample.
    """
    if level == "token":
        return log_ratio
    sums = sample_sums(log_ratio, lengths)
    return of_tokens(sums if level == "product" else sums / lengths.clamp(min=1), lengths, len(log_ratio))


def sample_sums(values: Tensor, lengths: Tensor) -> Tensor:
    """Adds up the tokens' values [K] of each sample, [R]."""
    sums: Tensor = torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True, initial=0.0)
    return sums


def of_tokens(values: Tensor, lengths: Tensor, tokens: int) -> Tensor:
    """Gives each of the K tokens the value of its sample, [R] → [K]."""
    samples = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths, output_size=tokens)
    return values[samples]
