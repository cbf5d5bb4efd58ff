"""The penalty for moving away from the reference model."""

import torch
from torch import Tensor

from learner.losses.log_ratio import LOG_RATIO_LIMIT


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimates KL(policy ‖ reference) per token [K], never negative (Schulman's k3)."""
    log_ratio = (reference - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.exp(log_ratio) - log_ratio - 1.0
