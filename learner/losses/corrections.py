"""What a loss can do with the ratio of the learner's policy to the one that drew the tokens.

All functions are pure and work token by token: `log_ratio` [K] is log ρ within its limits, with gradient, of the token
or of its sample (`learner.losses.log_ratio`); `logprobs` [K] are the learner's, with gradient; `advantages` [K].
`USES` says which function stands for which word of `learner.correction.use` (`echo_queue.config.corrections`).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from echo_queue.config import Correction
from learner.losses.inputs import LossInputs


class Ratios(NamedTuple):
    """The input of a correction. `limit`: M2PO's, for the mini-batch."""

    log_ratio: Tensor
    tokens: LossInputs
    limit: float


class Surrogate(NamedTuple):
    """The loss to minimise per token, and the tokens whose gradient the correction cut off or reduced; both [K]."""

    losses: Tensor
    cut: Tensor


def plain(logprobs: Tensor, advantages: Tensor) -> Surrogate:
    """Returns −A·log π, which is correct for data of the policy itself (REINFORCE, Williams 1992)."""
    return Surrogate(-advantages * logprobs, torch.zeros_like(advantages, dtype=torch.bool))


def clip(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Surrogate:
    """Returns −min(ρA, clip(ρ, 1 − low, 1 + high)·A).

    PPO (Schulman et al. 2017, eq. 7) with the asymmetric bounds of DAPO (Yu et al. 2025); of a sample's ratio, GSPO
    (arXiv 2507.18071, eq. 5).
    """
    ratio = torch.exp(log_ratio)
    clipped = ratio.clamp(1.0 - low, 1.0 + high)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    cut = torch.where(advantages > 0, ratio > 1.0 + high, (ratio < 1.0 - low) & (advantages < 0))
    return Surrogate(losses, cut)


def tis(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, cap: float) -> Surrogate:
    """Returns −sg(min(ρ, cap))·A·log π, where sg stops the gradient.

    Truncated importance sampling (Ionides 2008; for LLMs TIS), and CISPO (arXiv 2506.13585, eq. 4) without a lower
    bound, as ScaleRL uses it (arXiv 2510.13786).
    """
    ratio = torch.exp(log_ratio.detach())
    return Surrogate(-ratio.clamp(max=cap) * advantages * logprobs, ratio > cap)


def mask(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, low: float, high: float) -> Surrogate:
    """Returns −sg(ρ·1[low ≤ ρ ≤ high])·A·log π (IcePop, arXiv 2510.18855)."""
    ratio = torch.exp(log_ratio.detach())
    cut = (ratio < low) | (ratio > high)
    return Surrogate(-ratio.masked_fill(cut, 0.0) * advantages * logprobs, cut)


def dppo(log_ratio: Tensor, moved: Tensor, advantages: Tensor, delta: float, drift: float) -> Surrogate:
    """Returns −ρA·1[the probability has not moved by more than `delta` towards A] + drift·(log ρ)².

    `moved` [K]: π − μ. The mask is 0 where A > 0 and π − μ > delta, and where A < 0 and π − μ < −delta (DPPO, arXiv
    2602.04879, with total variation; the last term and the gradient through ρ are prime-rl's).
    """
    cut = torch.where(advantages > 0, moved > delta, (moved < -delta) & (advantages < 0))
    losses = -(torch.exp(log_ratio) * advantages).masked_fill(cut, 0.0) + drift * log_ratio.square()
    return Surrogate(losses, cut)


def m2po(log_ratio: Tensor, advantages: Tensor, limit: float) -> Surrogate:
    """Returns −ρA·M, where M is 0 for tokens that would move further away and have (log ρ)² ≥ `limit`.

    M2PO (arXiv 2510.01161, eq. 8); `second_moment_limit` finds the limit for the whole mini-batch.
    """
    log_ratios = log_ratio.detach()
    cut = would_move_away(log_ratios, advantages) & (log_ratios.double().square() >= limit)
    return Surrogate(-(torch.exp(log_ratio) * advantages).masked_fill(cut, 0.0), cut)


def second_moment_limit(log_ratios: Tensor, advantages: Tensor, budget: float) -> float:
    """Returns the limit below which the (log ρ)² of tokens that would move away have a mean of at most `budget`.

    The largest are left out until that holds, ties together; inf if none need be (arXiv 2510.01161, algorithm 1).
    Both inputs [N] are of a whole mini-batch, so the limit does not depend on how it is cut.
    """
    moments = log_ratios[would_move_away(log_ratios, advantages)].double().square().sort().values
    means = moments.cumsum(0) / torch.arange(1, len(moments) + 1, device=moments.device)
    kept = int((means <= budget).sum())
    return float(moments[kept]) if kept < len(moments) else torch.inf


def would_move_away(log_ratios: Tensor, advantages: Tensor) -> Tensor:
    """Returns which tokens the update would move further from the behaviour policy: A > 0 and ρ > 1, or both less."""
    return log_ratios * advantages > 0


def proximal_logprobs(logprobs: Tensor, behaviour: Tensor, lags: Tensor) -> Tensor:
    """Approximates the log-probabilities [K] of the proximal policy between behaviour and learner, without gradient.

    It serves updates of one step, which have no policy of their beginning beside the learner's own.

    log π_prox = log μ + α (log π − log μ) with α = Δ / (Δ + 1), where Δ is the token's lag in updates: the versions lie
    evenly between the one that drew the token and the one that is being made (AReaL's `loglinear` approximation of
    arXiv 2505.24298). Fresh tokens have μ itself.
    """
    lags = lags.to(behaviour.dtype)
    return behaviour + lags / (lags + 1) * (logprobs.detach() - behaviour)


USES: Mapping[str, Callable[[Ratios, Correction], Surrogate]] = {
    "none": lambda r, _: plain(r.tokens.logprobs, r.tokens.advantages),
    "clip": lambda r, c: clip(r.log_ratio, r.tokens.advantages, c.clip_low, c.clip_high),
    "truncate": lambda r, c: tis(r.log_ratio, r.tokens.logprobs, r.tokens.advantages, c.cap),
    "mask": lambda r, c: mask(r.log_ratio, r.tokens.logprobs, r.tokens.advantages, c.mask_low, c.mask_high),
    "dppo": lambda r, c: dppo(r.log_ratio, _moved(r.tokens), r.tokens.advantages, c.delta, c.drift),
    "m2po": lambda r, _: m2po(r.log_ratio, r.tokens.advantages, r.limit),
}
"""The function of each word of `learner.correction.use`."""


def _moved(tokens: LossInputs) -> Tensor:
    """Returns how much the tokens' probabilities have grown since they were drawn, [K]."""
    return tokens.logprobs.detach().exp() - tokens.behaviour.exp()
