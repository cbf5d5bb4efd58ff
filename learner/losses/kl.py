"""The penalty for moving away from the reference model."""

import torch
from torch import Tensor

from learner.losses.log_ratio import bounded


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimates KL(policy ‖ reference) per token [K], never negative (Schulman's k3)."""
    log_ratio = bounded(reference - logprobs)
    return torch.exp(log_ratio) - log_ratio - 1.0
