"""Flash attention on a CPU: torch's operation for sequences of any lengths, for which it has a kernel on GPUs alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


@contextmanager
def flash_attention_on_the_cpu() -> Iterator[None]:
    """Registers the stand-in inside the block."""
    library = torch.library.Library("torch_attn", "IMPL")
    library.impl("_varlen_attn", _forward, "CPU")
    library.impl("_varlen_attn_backward", _backward, "CPU")
    try:
        yield
    finally:
        library._destroy()


def _forward(  # noqa: PLR0917 - torch passes all by position
    query: Tensor, key: Tensor, value: Tensor, query_bounds: Tensor, key_bounds: Tensor, _longest_query: int,
    _longest_keys: int, causal: bool = False, scale: float | None = None, window: Any = None, *_: Any, **__: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns what queries [L, H, D] attend to, aligned at the last key; and no state that `_backward` would need."""
    found = torch.empty_like(query)
    for rows, keys in _sequences(query_bounds, key_bounds):
        weights = _weights(query[rows], key[keys], scale, window)
        found[rows] = torch.einsum("hqk,khd->qhd", weights, _spread(value[keys], query)).to(query.dtype)
    return found, query.new_zeros(query.shape[1], len(query), dtype=torch.float32), torch.zeros(2, dtype=torch.uint64)


def _backward(  # noqa: PLR0917
    upstream: Tensor, query: Tensor, key: Tensor, value: Tensor, _found: Tensor, _state: Tensor, query_bounds: Tensor,
    key_bounds: Tensor, _longest_query: int, _longest_keys: int, _causal: bool, _draws: Tensor,
    scale: float | None = None, window: Any = None, *_: Any, **__: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    of_query, of_key, of_value = (torch.zeros_like(states) for states in (query, key, value))
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for rows, keys in _sequences(query_bounds, key_bounds):
        weights, gradient = _weights(query[rows], key[keys], scale, window), upstream[rows].float()
        of_weights = torch.einsum("qhd,khd->hqk", gradient, _spread(value[keys], query))
        of_scores = factor * weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        of_query[rows] = torch.einsum("hqk,khd->qhd", of_scores, _spread(key[keys], query)).to(query.dtype)
        for into, by_head in (
            (of_key, torch.einsum("hqk,qhd->khd", of_scores, query[rows].float())),
            (of_value, torch.einsum("hqk,qhd->khd", weights, gradient)),
        ):
            into[keys] += by_head.unflatten(1, (key.shape[1], -1)).sum(2).to(key.dtype)
    return of_query, of_key, of_value


def _sequences(query_bounds: Tensor, key_bounds: Tensor) -> Iterator[tuple[slice, slice]]:
    bounds = (pairwise(bounds.tolist()) for bounds in (query_bounds, key_bounds))
    return ((slice(*rows), slice(*keys)) for rows, keys in zip(*bounds, strict=True))


def _weights(query: Tensor, key: Tensor, scale: float | None, window: Any) -> Tensor:
    """Returns the softmax of each query's scores, [H, queries, keys]."""
    scores = torch.einsum("qhd,khd->hqk", query.float(), _spread(key, query))
    scores *= query.shape[-1] ** -0.5 if scale is None else scale
    seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(key) - len(query))
    if window is not None and window[0] >= 0:
        seen = seen.triu(len(key) - len(query) - window[0])
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def _spread(states: Tensor, query: Tensor) -> Tensor:
    """Returns keys or values [K, H_kv, D] for each head of the queries, in float32."""
    return states.float().repeat_interleave(query.shape[1] // states.shape[1], 1)
