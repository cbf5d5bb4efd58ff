"""The elementwise parts of a model's layers, each compiled to one kernel: RMSNorms, rotations and gated products.

- A part is found by its structure, in whatever family, and keeps its own formula: what is compiled is the function of
  transformers that computes it. Products of matrices and attention stay outside, so that activation checkpointing
  keeps their results as before, and adapters and FSDP see the modules that they know.
- Only this model changes: other models in the process compute as they did.
- Sizes that change from one micro-batch to the next are marked, all but the last one of each tensor; so a part is
  compiled once for each kind of call, not for each length. The last size stays fixed: kernels need to know that rows
  begin at multiples of 16 bytes to read them quickly.
"""

from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

Part = Callable[..., Any]

ROTATE = "apply_rotary_pos_emb"
"""The name by which each of transformers' attention modules calls its rotation."""
GATED = {"gate_proj", "up_proj", "act_fn", "down_proj"}
"""The names that an MLP with down(act(gate(x)) · up(x)) uses."""
HALVED = {"gate_up_proj", "chunk", "activation_fn", "down_proj"}
"""The names that one uses which has gate and up in one matrix, one after the other."""


def compile_elementwise(model: Module) -> int:
    """Compiles the elementwise parts of `model`. Returns in how many modules it found any."""
    compiled = cache(_compiled)
    return sum(_take(module, compiled) for module in model.modules())


def _take(module: Any, compiled: Callable[[Part], Part]) -> bool:
    """Replaces the part of a module by a compiled one. Returns False if it has none."""
    kind: Any = type(module)
    forward = kind.forward
    names = set(forward.__code__.co_names)
    if kind.__name__.endswith("RMSNorm"):
        module.forward = partial(compiled(forward), module)
    elif ROTATE in names:
        module.forward = partial(_calling(forward, compiled(forward.__globals__[ROTATE])), module)
    elif names == GATED:
        module.forward = partial(_gated, module, compiled(_product))
    elif names == HALVED:
        module.forward = partial(_halved, module, compiled(_product_of_halves))
    elif hasattr(module, "_apply_gate"):  # experts, of which transformers computes all at once
        module._apply_gate = partial(compiled(kind._apply_gate), module)
    else:
        return False
    return True


def _compiled(part: Part) -> Part:
    """Returns `part` compiled for tensors whose last size alone is fixed."""
    run = torch.compile(part, dynamic=False)

    def call(*inputs: Any) -> Any:
        for one in inputs:
            if isinstance(one, Tensor):
                torch._dynamo.maybe_mark_dynamic(one, list(range(one.ndim - 1)))
        return run(*inputs)

    return call


def _calling(forward: FunctionType, rotate: Part) -> FunctionType:
    """Returns a copy of an attention's `forward` that calls `rotate`: other models keep the module's own."""
    own = FunctionType(
        forward.__code__, forward.__globals__ | {ROTATE: rotate}, forward.__name__, forward.__defaults__,
        forward.__closure__,
    )  # fmt: skip
    own.__kwdefaults__ = forward.__kwdefaults__
    return own


def _gated(mlp: Any, product: Part, hidden: Tensor) -> Tensor:
    found: Tensor = mlp.down_proj(product(mlp.act_fn, mlp.gate_proj(hidden), mlp.up_proj(hidden)))
    return found


def _halved(mlp: Any, product: Part, hidden: Tensor) -> Tensor:
    found: Tensor = mlp.down_proj(product(mlp.activation_fn, mlp.gate_up_proj(hidden)))
    return found


def _product(activation: Part, gate: Tensor, up: Tensor) -> Any:
    return activation(gate) * up


def _product_of_halves(activation: Part, gate_up: Tensor) -> Any:
    gate, up = gate_up.chunk(2, dim=-1)
    return activation(gate) * up
