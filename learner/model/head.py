"""Log-probabilities and entropies at the output embeddings, in pieces if their logits would be large.

A piece keeps log Z, one number per token, and computes its logits a second time for the gradient: the memory is that of
one piece, and neither the softmax nor the entropy is computed twice.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Scored(NamedTuple):
    """Scores of the tokens that the model drew, [K], in float32 at least: log-probability, and the distribution's
    entropy (without gradient)."""

    logprobs: Tensor
    entropy: Tensor


class Head(NamedTuple):
    """The output embeddings: logits = hidden · weightᵀ, or cap · tanh(those / cap) (Gemma 2, arXiv 2408.00118, §2)."""

    weight: Tensor
    """[V, H]"""
    cap: float | None = None


def token_scores(hidden: Tensor, head: Head, targets: Tensor, temperature: float, logits_at_once: int) -> Scored:
    """Returns log softmax(logits / temperature) at the targets; hidden [K, H], targets [K].

    `logits_at_once`: how many logits may lie in memory at once, in float32; at least one row is computed.
    """
    rows = max(1, logits_at_once // head.weight.shape[0])
    if len(hidden) <= rows:
        logprobs = torch.log_softmax(_logits(hidden, *head) / temperature, dim=-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        # A copy, since FSDP puts its hook on the result, which must not be a view.
        return Scored(logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1).clone(), entropy)
    return Scored(*_PiecewiseScores.apply(hidden, *head, targets, temperature, rows))  # type: ignore[no-untyped-call]


class _PiecewiseScores(torch.autograd.Function):
    """`token_scores` of many tokens, `rows` at a time."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes all by position
        ctx: Any, hidden: Tensor, weight: Tensor, cap: float | None, targets: Tensor, temperature: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        log_z = torch.empty(len(hidden), dtype=_wide(hidden.dtype), device=hidden.device)
        logprobs, entropy = torch.empty_like(log_z), torch.empty_like(log_z)
        for piece in _pieces(len(hidden), rows):
            logits = _logits(hidden[piece], weight, cap).div_(temperature)
            log_z[piece] = torch.logsumexp(logits, -1)
            logits.sub_(log_z[piece].unsqueeze(-1))
            logprobs[piece] = logits.gather(-1, targets[piece].unsqueeze(-1)).squeeze(-1)
            entropy[piece] = -logits.exp().mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, log_z)
        ctx.temperature, ctx.cap, ctx.rows = temperature, cap, rows
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """∂ logprob / ∂ logits = (onehot(target) − softmax) / temperature, times the gradient of each logprob.

        A cap adds the factor 1 − (logits / cap)².
        """
        hidden, weight, targets, log_z = ctx.saved_tensors
        scaled = (gradients[0] / ctx.temperature).unsqueeze(-1)
        of_hidden = torch.empty_like(hidden)
        trained = ctx.needs_input_grad[1]
        of_weight = torch.zeros(weight.shape if trained else 0, dtype=_wide(weight.dtype), device=weight.device)
        for piece in _pieces(len(hidden), ctx.rows):
            logits = _logits(hidden[piece], weight, ctx.cap)
            slope = None if ctx.cap is None else 1 - (logits / ctx.cap).square()
            of_logits = logits.div_(ctx.temperature).sub_(log_z[piece].unsqueeze(-1)).exp_().mul_(-scaled[piece])
            of_logits.scatter_add_(-1, targets[piece].unsqueeze(-1), scaled[piece])
            if slope is not None:
                of_logits.mul_(slope)
            rounded = of_logits.to(hidden.dtype)
            of_hidden[piece] = rounded @ weight
            if trained:
                of_weight += rounded.t() @ hidden[piece]
        return of_hidden, of_weight.to(weight.dtype) if trained else None, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, cap: float | None) -> Tensor:
    """Returns the logits in float32 at least, rounded to the type of `hidden` before, as engines round theirs.

    Where an engine's hidden states are the same, so are then its log-probabilities. With logits of about 20 that only
    the engine rounds to bfloat16 they would differ by 0.03; the ratio would be less noisy, by a seventh at most, only
    where the hidden states differ by more than 0.3 %.
    """
    logits = F.linear(hidden, weight).to(_wide(hidden.dtype))
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns float32, or float64 for a model that computes in it."""
    return torch.promote_types(dtype, torch.float32)


def _pieces(count: int, rows: int) -> list[slice]:
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
