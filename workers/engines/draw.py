"""Draws one token per row, and says with which probability it was drawn."""

import torch
from torch import Tensor


def draw(logits: Tensor, uniform: Tensor, temperature: float, top_p: float) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling from softmax(logits / temperature), cut to the top-p nucleus and renormalised.

    logits [R, V]; uniform [R] in [0, 1), float64. Returns tokens [R] int64 and their log-probabilities [R] float32.
    A row's token depends on that row only. The nucleus is the smallest set of likeliest tokens whose mass
    reaches top_p (Holtzman et al. 2020).
    """
    logprobs = torch.log_softmax(logits.float() / temperature if temperature != 1.0 else logits.float(), dim=-1)
    if top_p < 1.0:
        return _draw_nucleus(logprobs, uniform, top_p)
    # float64: the running sum over a large vocabulary must still resolve its rare tokens.
    tokens = _invert(logprobs.exp().cumsum(-1, dtype=torch.float64), uniform)
    return tokens.squeeze(-1), logprobs.gather(-1, tokens).squeeze(-1)


def _draw_nucleus(logprobs: Tensor, uniform: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    ordered, ids = logprobs.sort(dim=-1, descending=True)
    probabilities = ordered.double().exp_()
    outside = probabilities.cumsum(-1) - probabilities >= top_p
    kept = probabilities.masked_fill_(outside, 0.0).cumsum(-1)
    ranks = _invert(kept, uniform)
    drawn = ordered.gather(-1, ranks) - kept[:, -1:].log().float()
    return ids.gather(-1, ranks).squeeze(-1), drawn.squeeze(-1)


def _invert(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """First index [R, 1] whose cumulative mass exceeds uniform × total; its own mass is therefore positive."""
    points = uniform.unsqueeze(-1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, points, right=True).clamp_(max=cumulative.shape[-1] - 1)
