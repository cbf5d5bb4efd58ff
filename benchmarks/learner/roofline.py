"""What the work of one update would take at a device's own rates, part by part, so that a miss has an address.

One update is counted, operation by operation, as it is carried out: what activation checkpointing computes again, the
head's second pass, the optimizer, and what FSDP casts and copies are all in it. Products take FLOP / rate. Attention
takes 4 · layers · heads · width · pairs FLOP for each forward pass and 10 for its gradient. All else takes the bytes of
its inputs and results / the rate of memory. Launches go on beside the device: an update takes at least the longer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.learner.rates import Rates

ATTENTION, BACKWARD = ("attention", "varlen_attn"), "backward"
COPIES = ("copy", "aten::cat", "aten::clone", "contiguous")
FORWARD_FLOP, BACKWARD_FLOP = 4, 10
NOTHING = ("aten::empty", "aten::detach", "aten::alias", "aten::_local_scalar", "c10d", "_c10d")
"""Begin the names of operations without a kernel, or whose kernels are another process's as well."""


@dataclass(frozen=True)
class Roofline:
    """Seconds. `seconds`: the least that an update takes, the device's parts together or all launches."""

    products_s: float
    attention_s: float
    elementwise_s: float
    copies_s: float
    launches: int
    launches_s: float

    @property
    def seconds(self) -> float:
        device_s = self.products_s + self.attention_s + self.elementwise_s + self.copies_s
        return max(device_s, self.launches_s)

    def __str__(self) -> str:
        return (
            f"at the device's rates {self.seconds:.3f} s: products {self.products_s:.3f}, "
            f"attention {self.attention_s:.3f}, elementwise {self.elementwise_s:.3f}, copies {self.copies_s:.3f}; "
            f"{self.launches} launches {self.launches_s:.3f}"
        )


class Counter(TorchDispatchMode):
    """Counts what is carried out: FLOP of products, passes of attention, bytes of all else."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.product_flop = 0.0
        self.attention = {False: 0, True: 0}
        """By whether it is the gradient's: the number of operations."""
        self.elementwise = self.copies = self.launches = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not (func.is_view or name.startswith(NOTHING)):
            self._count(func, name, args, kwargs or {}, result)
        return result

    def _count(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        self.launches += 1
        size = sum(one.nbytes for one in tree_leaves((args, kwargs, result)) if isinstance(one, Tensor))
        if any(word in name for word in ATTENTION):
            self.attention[BACKWARD in name] += 1
        elif func._overloadpacket in flop_registry:
            self.product_flop += flop_registry[func._overloadpacket](*args, **kwargs, out_val=result)
        elif any(word in name for word in COPIES):
            self.copies += size
        else:
            self.elementwise += size


def roofline(update: Callable[[], object], pass_flop: float, rates: Rates) -> Roofline:
    """Takes one update, counted. `pass_flop`: layers · heads · width · pairs of its attention."""
    with Counter() as counted:
        update()
    forward, backward = counted.attention[False], counted.attention[True]
    passes = FORWARD_FLOP * forward / max(1, backward) + BACKWARD_FLOP
    return Roofline(
        counted.product_flop / rates.products,
        passes * pass_flop / rates.attention,
        counted.elementwise / rates.memory,
        counted.copies / rates.memory,
        counted.launches,
        counted.launches * rates.launch_s,
    )
