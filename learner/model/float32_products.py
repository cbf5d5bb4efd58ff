"""Matrix products of bfloat16 in float32, on a processor that has no arithmetic of bfloat16.

- A product has bfloat16 operands and a bfloat16 result, which is rounded once, as with hardware that adds up in
  float32. So weights are published, kept and computed with as on any other machine.
- Without it torch computes such products one by one: 30 to 40 times as slowly as in float32, for a model of 135 million
  parameters on two cores with AVX2.
- It covers whatever multiplies matrices, forward and backward: linear layers, adapters, experts, attention, the head.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from echo_queue.models.devices import cpu_has_bfloat16

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    ATTENTION,
}


def float32_products(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Returns a context for the passes of a model that computes in `dtype` on `device`, which does nothing where that
    is fast already."""
    slow = dtype == torch.bfloat16 and device.type == "cpu" and not cpu_has_bfloat16()
    return _Float32Products() if slow else nullcontext()  # type: ignore[no-untyped-call]


class _Float32Products(TorchDispatchMode):
    """Computes the products of bfloat16 tensors, of this thread, in float32."""

    def __torch_dispatch__(self, operation: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operation not in PRODUCTS or not any(_is_narrow(one) for one in args):
            return operation(*args, **kwargs)
        wide = {name: _wide(one) for name, one in kwargs.items()}
        found = operation(*map(_wide, args), **wide)
        if operation is ATTENTION:  # the second result is the logarithm of sums, which always is in float32
            return found[0].to(torch.bfloat16), found[1]
        return tuple(map(_narrow, found)) if isinstance(found, tuple) else _narrow(found)


def _is_narrow(one: object) -> bool:
    return isinstance(one, Tensor) and one.dtype == torch.bfloat16


def _wide(one: Any) -> Any:
    return one.float() if _is_narrow(one) else one


def _narrow(one: Any) -> Any:
    return one.to(torch.bfloat16) if isinstance(one, Tensor) and one.dtype == torch.float32 else one
