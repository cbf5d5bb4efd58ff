"""GRPO's arithmetic as pure functions over flat token vectors: K is the number of tokens that the model drew.

- Every term comes back per token and unreduced; the caller divides by the tokens of the whole update, so the
  gradient does not depend on how the update was cut into micro-batches.
- The ratio is against the behaviour log-probabilities, whatever their age: that is the correction for lag.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

STD_FLOOR = 1e-4
LOG_RATIO_LIMIT = 20.0
"""Beyond it exp() has lost all meaning; without a limit one absurd token overflows the whole update."""


def group_advantages(rewards: Tensor, kind: Literal["std", "mean"]) -> Tensor:
    """Rewards [G] of one prompt's samples → advantages [G].

    "std": (r − mean) / (std + 1e-4) with the sample deviation (GRPO, Shao et al. 2024, as TRL computes it);
    "mean": r − mean (Dr. GRPO, Liu et al. 2025).
    """
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + STD_FLOOR) if kind == "std" else centred


def clipped_surrogate(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """−min(ρA, clip(ρ, 1 − low, 1 + high)·A) per token, and where the clip cut the gradient; all [K].

    ρ = exp(logprobs − behaviour). PPO (Schulman et al. 2017) with the asymmetric bounds of DAPO (Yu et al. 2025).
    """
    ratio = torch.exp((logprobs - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    cut = torch.where(advantages > 0, ratio > 1.0 + clip_high, (ratio < 1.0 - clip_low) & (advantages < 0))
    return loss, cut


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate of KL(policy ‖ reference) per token [K]: never negative (Schulman's k3)."""
    log_ratio = (reference - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.exp(log_ratio) - log_ratio - 1.0


@dataclass(frozen=True)
class TokenSums:
    """What an update reports about its tokens, as sums that add over micro-batches."""

    tokens: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    kl_behaviour: float = 0.0
    """Of behaviour minus learner log-probabilities."""
    kl_reference: float = 0.0
    entropy: float = 0.0

    def __add__(self, other: "TokenSums") -> "TokenSums":
        return TokenSums(
            self.tokens + other.tokens,
            self.loss + other.loss,
            self.clipped + other.clipped,
            self.kl_behaviour + other.kl_behaviour,
            self.kl_reference + other.kl_reference,
            self.entropy + other.entropy,
        )

    def mean(self, total: float) -> float:
        """A sum per token; 0 for an update without tokens."""
        return total / self.tokens if self.tokens else 0.0
