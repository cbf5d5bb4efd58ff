"""Attention over packed tokens (`learner.batch.packing`), one module for each kind of device.

`prepare` makes a transformers model call the micro-batch's own `Packing.attend` in each layer.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from echo_queue.errors import ConfigError, Problem
from echo_queue.models.shape import flash_width
from learner.batch.packing import LayerAttention, Packing
from learner.model.attention.rectangles import Rectangles
from learner.model.attention.varlen import VariableLength

ATTENTION = "echo_shared_prompts"


def packing_for(device: torch.device, dtype: torch.dtype, model: PreTrainedModel) -> type[Packing]:
    """Returns the fastest exact kind for `model`, which computes in `dtype` on `device`.

    Flash attention has neither soft caps nor sinks, and heads of some widths alone.
    """
    fast = device.type == "cuda" and dtype == torch.bfloat16 and flash_width(_head_width(model))
    return VariableLength if fast and not _capped(model) and not _has_sinks(model) else Rectangles


def _head_width(model: PreTrainedModel) -> int:
    settings = model.config.get_text_config()
    return int(getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads)


def _capped(model: PreTrainedModel) -> bool:
    return getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None


def _has_sinks(model: PreTrainedModel) -> bool:
    return any(name.endswith(".sinks") for name, _ in model.named_parameters())


def _attention(
    _module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *_mask: None,
    packing: Packing, scaling: float | None = None, sliding_window: int | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, **_options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attends within the packed tokens: query [1, H, L, D], key and value [1, H_kv, L, D] → [1, L, H, D].

    `transformers` calls this in each layer, with that layer's own window, soft cap and sinks.
    """
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    layer = LayerAttention(scaling, sliding_window, softcap, s_aux)
    return packing.attend(query, key, value, layer).unsqueeze(0), None


def unsupported(what: str) -> ConfigError:
    """Returns the error for a model that needs `what`."""
    fix = "use a model of another family: docs/models.md lists those that are trained"
    return ConfigError(Problem("model.base", f"its architecture has {what}, which the learner does not compute", fix))


AttentionInterface.register(ATTENTION, _attention)
