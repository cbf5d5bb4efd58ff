"""A device whose waits are counted, where there is no GPU: torch's meta device, whose tensors have no values.

On a GPU the host waits for every kernel so far where it reads a value, and where it copies from memory that is not
pinned. Here such an operation is counted, and finds ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from learner.model import scorer

DEVICE = torch.device("meta")
READ = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations that read a mask, but no indices."""


class HostWaits(TorchDispatchMode):
    """Keeps in `found` the names of the operations in its block for which the host waits for the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        source, target = _ends(operation, tensors, kwargs)
        read = source == DEVICE and _is_read(operation, tensors, kwargs)
        if read or (source != target and not kwargs.get("non_blocking") and True not in args[2:]):
            self.found.append(operation.overloadpacket.__name__)
        if not read and (source, target) != (DEVICE, torch.device("cpu")):
            return operation(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, _values, (args, kwargs))
        found = operation(*args, **kwargs)
        return tree_map_only(Tensor, lambda one: one.to(target), found) if read else found


def _ends(operation: Any, tensors: Sequence[Tensor], options: Mapping[str, Any]) -> tuple[torch.device, torch.device]:
    """Returns the devices from which and to which it copies; for what does not copy, its own twice."""
    if operation is torch.ops.aten.copy_.default:
        return tensors[1].device, tensors[0].device
    own = DEVICE if any(one.device == DEVICE for one in tensors) else torch.device("cpu")
    return own, options.get("device") or own if operation is torch.ops.aten._to_copy.default else own


def _is_read(operation: Any, tensors: Sequence[Tensor], options: Mapping[str, Any]) -> bool:
    """Returns whether the host must know values of these tensors."""
    if operation.overloadpacket.__name__ in INDEXED:
        return any(one.dtype == torch.bool for one in tensors[1:])
    return bool(READ & set(operation.tags)) and options.get("output_size") is None


def _values(tensor: Tensor) -> Tensor:
    return torch.ones(tensor.shape, dtype=tensor.dtype) if tensor.device == DEVICE else tensor


@contextmanager
def host_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yields the waits of the block, in which policies may be on `DEVICE`."""
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [DEVICE.type])
    monkeypatch.setitem(scorer.LOGITS_AT_ONCE, DEVICE.type, scorer.LOGITS_AT_ONCE["cuda"])
    tensor, waits = torch.tensor, HostWaits()

    def made(values: Any, **options: Any) -> Tensor:
        if options.get("device") == DEVICE:
            waits.found.append("tensor")
        return tensor(values, **options)

    monkeypatch.setattr(torch, "tensor", made)  # which copies out of the mode's sight
    with waits:
        yield waits.found
