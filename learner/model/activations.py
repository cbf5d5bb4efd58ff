"""Activation checkpointing: a layer keeps little of its forward pass and computes the rest again for the gradient."""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.attention.varlen  # registers its operation
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Kept = Literal["none", "selective", "full"]

EXPENSIVE = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
}
"""The operations whose results "selective" keeps: matrix products and attention. All else is cheap to compute again,
but the products of experts, which cannot be kept: gpt-oss adds biases to them in place."""


def checkpoint_layers(layers: torch.nn.ModuleList, kind: Kept) -> None:
    """Makes each layer keep only its input ("full"), or that and what is expensive ("selective")."""
    if kind == "none":
        return
    context: dict[str, Any] = {"context_fn": _contexts} if kind == "selective" else {}
    for layer in layers:
        layer.forward = _checkpointed(layer.forward, **context)


def _checkpointed(forward: Callable[..., Any], **context: Any) -> Callable[..., Any]:
    """Returns `forward` with its checkpoint, as a Python function: `torch.compile` compiles no other callable here."""

    def run(*inputs: Any, **options: Any) -> Any:
        # Nothing in a layer draws random numbers.
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **context, **options)

    return run


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_choose)


def _choose(_context: Any, operation: Any, *_arguments: Any, **_options: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in EXPENSIVE else CheckpointPolicy.PREFER_RECOMPUTE
