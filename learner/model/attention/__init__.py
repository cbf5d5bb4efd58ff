"""Attention over packed tokens (`learner.batch.packing`), one module for each kind of device.

`prepare` makes a transformers model call the micro-batch's own `Packing.attend` in each layer.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from echo_queue.errors import ConfigError, Problem
from learner.batch.packing import Packing
from learner.model.attention.rectangles import Rectangles
from learner.model.attention.varlen import VariableLength

ATTENTION = "echo_shared_prompts"
UNSUPPORTED = ("sliding_window", "softcap", "s_aux")
"""Arguments by which a model asks its attention for more than the softmax of scaled dot products over all keys."""


def packing_for(device: torch.device, dtype: torch.dtype) -> type[Packing]:
    """Returns the fastest exact kind for a model that computes in `dtype` on `device`."""
    return VariableLength if device.type == "cuda" and dtype == torch.bfloat16 else Rectangles


def _attention(
    _module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *_mask: None,
    packing: Packing, scaling: float | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attends within the packed tokens: query [1, H, L, D], key and value [1, H_kv, L, D] → [1, L, H, D].

    `transformers` calls this in each layer. Raises `ConfigError` for a kind of attention that is not built.
    """
    for name in UNSUPPORTED:
        if options.get(name) is not None:
            raise unsupported(f"attention with {name} = {options[name]}")
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return packing.attend(query, key, value, scaling).unsqueeze(0), None


def unsupported(what: str) -> ConfigError:
    """Returns the error for a model that needs `what`."""
    fix = "use an architecture without sliding windows, soft caps, sinks and logit scales, such as Qwen3 or Llama"
    return ConfigError(Problem("model.base", f"its architecture has {what}, which the learner does not compute", fix))


AttentionInterface.register(ATTENTION, _attention)
