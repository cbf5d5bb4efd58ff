"""A linear layer that computes with its adapters merged into its weight, and trains the adapters alone.

- The forward pass uses the very weight that workers serve: round(W0 + s · B · A). PEFT's own forward pass adds
  s · B (A x) to W0 x instead, without that rounding.
- The gradient is that of the unrounded sum, as it is for a float32 master whose rounded value is computed with. It is
  computed from the factors: no gradient of the whole weight ever exists.
- The merged weight is made again for the backward pass instead of being kept, so that there is one at a time.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from echo_queue.weights import lora


@torch.library.custom_op("echo_queue::merged_weight", mutates_args=())
def merged_weight(base: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """Returns `lora.merged_weight` as one operation, so that activation checkpointing never keeps what is within."""
    return lora.merged_weight(base, a, b, scaling)


@merged_weight.register_fake
def _(base: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    return torch.empty_like(base)


class MergedLinear(torch.autograd.Function):
    """hidden […, in] · round(base + scaling · b · a)ᵀ + bias; base [out, in], a [rank, in], b [out, rank]."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes all by position
        ctx: Any, hidden: Tensor, base: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float
    ) -> Tensor:
        ctx.save_for_backward(hidden, base, a, b)
        ctx.scaling = scaling
        return F.linear(hidden, merged_weight(base, a, b, scaling), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Returns ∂A = s · (Bᵀ g) xᵀ and ∂B = s · g (A x)ᵀ, of which the products with the rank come first."""
        hidden, base, a, b = ctx.saved_tensors
        (gradient,) = gradients
        of_hidden = gradient @ merged_weight(base, a, b, ctx.scaling) if ctx.needs_input_grad[0] else None
        rows, inputs = gradient.flatten(0, -2), hidden.flatten(0, -2)
        of_a = (rows @ b.to(base.dtype)).t() @ inputs
        of_b = rows.t() @ (inputs @ a.to(base.dtype).t())
        return of_hidden, None, None, of_a.to(a.dtype) * ctx.scaling, of_b.to(b.dtype) * ctx.scaling, None
