"""The objective of an update: the terms of the loss, put together as the configuration says (GRPO)."""

from typing import NamedTuple

import torch
from torch import Tensor

from echo_queue import config
from learner.losses.clipped import clipped_surrogate
from learner.losses.kl import kl_k3


class TokenLosses(NamedTuple):
    """The loss to minimise, where the clip cut its gradient, and KL(policy ‖ reference), per token; all [K]."""

    losses: Tensor
    clipped: Tensor
    kl: Tensor


def token_losses(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, reference: Tensor | None, settings: config.Learner
) -> TokenLosses:
    """Returns the loss: clipped surrogate + `settings.kl` · KL(policy ‖ reference), with its parts. All inputs are [K].

    `reference`: the reference model's log-probabilities; None leaves the KL term out and reports it as 0.
    """
    losses, clipped = clipped_surrogate(logprobs, behaviour, advantages, settings.clip_low, settings.clip_high)
    if reference is None:
        return TokenLosses(losses, clipped, torch.zeros_like(losses))
    kl = kl_k3(logprobs, reference)
    return TokenLosses(losses + settings.kl * kl, clipped, kl)
