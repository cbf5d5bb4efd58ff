"""The attention of `TransformersEngine`: a layer's own window, over rows that end at the same column.

All tokens of a row are contiguous and end at the last column, so that the distance of two columns is that of two
positions, and a window is the same columns in every row.
"""

import sys
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "echo_windows"


def use(model: PreTrainedModel) -> None:
    """Makes each layer of `model` apply its own window to the mask that the forward pass is given.

    That mask [R, 1, T, S] is added to the scores; transformers hands one of four dimensions to all layers as it is.
    """
    model.set_attn_implementation(ATTENTION)


def _attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, *,
    sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attends: query [R, H, T, D], key and value [R, H_kv, S, D] → [R, T, H, D]."""
    if sliding_window is not None:
        key, value, attention_mask = _windowed(key, value, attention_mask, sliding_window)
    if softcap is None and s_aux is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # The function of the model's own module is the only one of transformers that computes these for it on any device.
    written_out = sys.modules[type(module).__module__].eager_attention_forward
    attended: tuple[Tensor, Tensor] = written_out(
        module, query, key, value, attention_mask, softcap=softcap, s_aux=s_aux, **options
    )
    return attended


def _windowed(key: Tensor, value: Tensor, mask: Tensor, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Leaves out the columns before the first query's window, and hides those before the others'."""
    queries, columns = mask.shape[-2:]
    first = max(0, columns - queries - window + 1)
    key, value, mask = key[:, :, first:], value[:, :, first:], mask[..., first:]
    if queries > 1:
        near = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device)
        near = near.triu(columns - first - queries - window + 1)
        mask = mask.masked_fill(~near, torch.finfo(mask.dtype).min)
    return key, value, mask


AttentionInterface.register(ATTENTION, _attention)
