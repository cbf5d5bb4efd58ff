"""Draws one token per row, and computes the probability with which it was drawn."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from workers.engines.protocol import Sampling

BLOCK = 64
BELOW_ONE = 1.0 - 2.0**-40


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Returns a sample's random numbers in [0, 1): every engine draws the token at index t with the t-th number."""
    return np.random.default_rng(seed).random(count)


def draw(logits: Tensor, uniform: Tensor, rows: Mapping[Sampling, Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Samples each row by inverse CDF from the distribution of its `Sampling`.

    logits [R, V]; uniform [R] in [0, 1), float64; `rows` has the numbers of the rows of each sampling. Returns tokens
    [R] int64 and their log-probabilities [R] float32. A row's token depends on that row only.
    """
    if len(rows) == 1:
        return _draw(logits, uniform, *rows)
    tokens, logprobs = torch.empty_like(uniform, dtype=torch.long), torch.empty_like(uniform, dtype=torch.float32)
    for sampling, numbers in rows.items():
        those = torch.tensor(numbers, device=logits.device)
        tokens[those], logprobs[those] = _draw(logits[those], uniform[those], sampling)
    return tokens, logprobs


def _draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Samples all rows from the distribution of one sampling."""
    logits, temperature = logits.float(), sampling.temperature or 1.0
    logprobs = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
    if not sampling.temperature:
        drawn, tokens = logprobs.max(-1)
        return tokens, drawn
    if sampling.top_p < 1.0:
        return _draw_nucleus(logprobs, uniform, sampling.top_p)
    tokens = _invert(logprobs.exp(), uniform)
    return tokens, logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def rows_by_sampling(samplings: Iterable[Sampling]) -> dict[Sampling, list[int]]:
    """Returns the numbers of the rows of each sampling, for `draw`."""
    rows: dict[Sampling, list[int]] = {}
    for row, sampling in enumerate(samplings):
        rows.setdefault(sampling, []).append(row)
    return rows


def to_lists(tokens: Tensor, logprobs: Tensor) -> tuple[list[int], list[float]]:
    """Returns what `draw` returned [R] as lists, read by one copy: a GPU is waited for once. float64 holds both."""
    read, of_them = torch.stack([tokens.double(), logprobs.double()]).tolist()
    return [int(token) for token in read], of_them


def nucleus_(probabilities: Tensor, top_p: float) -> Tensor:
    """Keeps, in each row in descending order [R, V], the smallest set whose mass reaches top_p (Holtzman et al. 2020);
    sets the others to 0. In place."""
    outside = probabilities.cumsum(-1, dtype=torch.float64) - probabilities >= top_p
    return probabilities.masked_fill_(outside, 0.0)


def _draw_nucleus(logprobs: Tensor, uniform: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    ordered, ids = logprobs.sort(dim=-1, descending=True)
    kept = nucleus_(ordered.exp(), top_p)
    ranks = _invert(kept, uniform).unsqueeze(-1)
    drawn = ordered.gather(-1, ranks) - kept.sum(-1, keepdim=True).log()
    return ids.gather(-1, ranks).squeeze(-1), drawn.squeeze(-1)


def _invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Returns the first index [R] whose cumulative mass exceeds uniform × total; its own mass is therefore positive.

    It finds the block first, then the index in it: a single running sum in float32 would lose the rare tokens of a
    large vocabulary, and one in float64 takes longer than everything else here.
    """
    rows, vocabulary = probabilities.shape
    blocks = F.pad(probabilities, (0, -vocabulary % BLOCK)).view(rows, -1, BLOCK)
    mass = blocks.sum(-1).double()
    block, inside = _find(mass, uniform.unsqueeze(-1))
    chosen = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1).double()
    index, _ = _find(chosen, inside)
    return (block * BLOCK + index).squeeze(-1)


def _find(mass: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Finds where `share` [R, 1] of the mass [R, N] falls: the index [R, 1], and the share of its own mass below."""
    cumulative = mass.cumsum(-1)
    point = share.clamp(0.0, BELOW_ONE) * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, point, right=True)
    own = mass.gather(-1, index)
    return index, (point - cumulative.gather(-1, index) + own) / own
