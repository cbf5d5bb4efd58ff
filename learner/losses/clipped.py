"""The clipped surrogate of PPO."""

import torch
from torch import Tensor

from learner.losses.log_ratio import LOG_RATIO_LIMIT


def clipped_surrogate(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Returns −min(ρA, clip(ρ, 1 − low, 1 + high)·A) per token, and where the clip cut the gradient; all [K].

    ρ = exp(logprobs − behaviour). PPO (Schulman et al. 2017) with the asymmetric bounds of DAPO (Yu et al. 2025).
    """
    ratio = torch.exp((logprobs - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    cut = torch.where(advantages > 0, ratio > 1.0 + clip_high, (ratio < 1.0 - clip_low) & (advantages < 0))
    return loss, cut
