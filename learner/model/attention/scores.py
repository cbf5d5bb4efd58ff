"""Attention of one layer over rectangles of queries and keys, with all that `LayerAttention` may ask for."""

import torch
import torch.nn.functional as F
from torch import Tensor

from learner.batch.packing import LayerAttention


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, layer: LayerAttention) -> Tensor:
    """Returns what each query attended to [R, H, T, D]; query [R, H, T, D], key and value [R, H_kv, S, D].

    `mask`, true where a query may attend, broadcasts to [R, 1, T, S] and already has the layer's window; None: causal.
    """
    if layer.cap is None and layer.sinks is None:
        if query.is_cuda:  # with fewer heads of keys, a mask or float32 would leave the kernel that keeps all scores
            key, value = (_of_all_heads(states, query) for states in (key, value))
        causal, grouped = mask is None, key.shape[1] < query.shape[1]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=layer.scale, enable_gqa=grouped
        )
    if mask is None:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
    return _written_out(query, key, value, mask, layer)


def _written_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, layer: LayerAttention) -> Tensor:
    """Computes what no kernel of torch does. All scores [R, H, T, S] lie in memory at once."""
    key, value = (_of_all_heads(states, query) for states in (key, value))
    scale = query.shape[-1] ** -0.5 if layer.scale is None else layer.scale
    scores = (query @ key.transpose(-1, -2)) * scale
    if layer.cap is not None:
        scores = torch.tanh(scores / layer.cap) * layer.cap
    scores = scores.masked_fill(~mask, -torch.inf)
    if layer.sinks is not None:
        sinks = layer.sinks.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    wide = torch.promote_types(scores.dtype, torch.float32)
    shares = torch.softmax(scores, dim=-1, dtype=wide).to(query.dtype)
    return shares[..., : key.shape[2]] @ value


def _of_all_heads(states: Tensor, query: Tensor) -> Tensor:
    """Returns keys or values [R, H_kv, S, D] once for each head of the queries, [R, H, S, D]."""
    return states.repeat_interleave(query.shape[1] // states.shape[1], dim=1)
