"""The objective of an update: the terms of the loss, put together as the configuration says (GRPO)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from echo_queue.config import Correction, Learner
from learner.losses import corrections, filters
from learner.losses.corrections import Surrogate
from learner.losses.custom import custom_loss
from learner.losses.inputs import LossInputs
from learner.losses.kl import kl_k3
from learner.losses.log_ratio import at_level, bounded


class TokenLosses(NamedTuple):
    """The loss to minimise, where the correction cut its gradient, where a filter took the token out, and
    KL(policy ‖ reference), per token; all [K]."""

    losses: Tensor
    clipped: Tensor
    filtered: Tensor
    kl: Tensor


def token_losses(tokens: LossInputs, settings: Learner, limit: float = math.inf) -> TokenLosses:
    """Returns the loss: corrected policy gradient + `settings.kl` · KL(policy ‖ reference), with its parts.

    Without a reference the KL term is left out and reported as 0. `limit`: `second_moment_limit` of the mini-batch.
    """
    losses, clipped = _policy_losses(tokens, settings, limit)
    filtered = _filtered(tokens, settings.correction)
    if filtered is None:
        filtered = torch.zeros_like(clipped)
    else:
        losses = losses.masked_fill(filtered, 0.0)
    if tokens.reference is None:
        return TokenLosses(losses, clipped, filtered, torch.zeros_like(losses))
    kl = kl_k3(tokens.logprobs, tokens.reference)
    return TokenLosses(losses + settings.kl * kl, clipped, filtered, kl)


def _policy_losses(tokens: LossInputs, settings: Learner, limit: float) -> Surrogate:
    """Returns the term that follows the advantages: −log π weighed by them, and corrected for lag."""
    if settings.loss:
        losses = custom_loss(settings.loss)(tokens)
        return Surrogate(losses, torch.zeros_like(losses, dtype=torch.bool))
    correction = settings.correction
    anchor = tokens.behaviour if correction.anchor == "behaviour" else tokens.proximal
    if anchor is None:
        anchor = corrections.proximal_logprobs(tokens.logprobs, tokens.behaviour, tokens.lags)
    log_ratio = at_level(bounded(tokens.logprobs - anchor), tokens.lengths, correction.level)
    ratios = corrections.Ratios(bounded(log_ratio), tokens, limit)
    surrogate = corrections.USES[correction.use](ratios, correction)
    if correction.anchor == "behaviour":
        return surrogate
    weights = bounded(anchor - tokens.behaviour).exp().clamp(max=correction.cap)
    return surrogate._replace(losses=weights * surrogate.losses)


def _filtered(tokens: LossInputs, correction: Correction) -> Tensor | None:
    """Returns the tokens that the filters take out; None without filters."""
    log_ratio, found = bounded(tokens.logprobs - tokens.behaviour), []
    if correction.filter_high:
        found.append(filters.outside(log_ratio, tokens.lengths, correction.filter_low, correction.filter_high))
    if correction.filter_worse:
        found.append(filters.worse_and_far(log_ratio, tokens.advantages, tokens.lengths, correction.filter_worse))
    return torch.stack(found).any(0) if found else None
