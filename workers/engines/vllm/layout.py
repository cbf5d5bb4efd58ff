"""The position of a checkpoint's tensors in vLLM's model, which fuses some of them along their first dimension."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from echo_queue.errors import ConfigError, Problem
from workers.engines.gpu_copies import GpuCopies, pairs_by_place

BLOCK_ROWS = 256


def views(model: Any, checkpoint: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns, for each name of `checkpoint` (a state dict with its variables), the view of vLLM's live `model` that
    holds it.

    Tied names share one view. Raises `ConfigError` unless every parameter of the model is covered, and every view
    equals its tensor bit for bit: an architecture that vLLM stores differently could not get new weights.
    """
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    fused = {part: (whole, parts) for whole, parts in packed.items() for part in parts}
    found: dict[int, Tensor] = {}
    reached: set[str] = set()
    for name, tensor in checkpoint.items():
        if id(tensor) in found:
            continue
        holder, first = _position(name, checkpoint, fused)
        if holder not in parameters:
            raise _unknown(name)
        view = parameters[holder].detach()[first : first + len(tensor)]
        if view.dtype != tensor.dtype or not torch.equal(view.cpu(), tensor):
            raise _unknown(name)
        reached.add(holder)
        found[id(tensor)] = view
    for name in parameters.keys() - reached:
        raise _unknown(name)
    return {name: found[id(tensor)] for name, tensor in checkpoint.items()}


def renew(views: Mapping[str, Tensor], tensors: Mapping[str, Tensor], copies: GpuCopies) -> None:
    """Copies `tensors` into their views, on a CPU with all its cores, since generation pauses meanwhile."""
    on_gpu, on_cpu = pairs_by_place(views, tensors)
    copies.to_gpu(on_gpu)
    with ThreadPoolExecutor(os.cpu_count(), "renewing") as cores:
        for _ in cores.map(lambda pair: _copy(*pair), on_cpu):
            """The iteration raises a copy's error."""


def _copy(view: Tensor, tensor: Tensor) -> None:
    """Copies a tensor; a transposed one in blocks, so that each row is written in pieces about as large as a page."""
    step = len(view) if view.is_contiguous() else BLOCK_ROWS
    for first in range(0, len(view), step):
        view[first : first + step].copy_(tensor[first : first + step])


def _position(
    name: str, checkpoint: Mapping[str, Tensor], fused: Mapping[str, tuple[str, list[str]]]
) -> tuple[str, int]:
    """Returns the parameter that holds `name`, and the index in its first dimension."""
    path, _, leaf = name.rpartition(".")
    parent, _, module = path.rpartition(".")
    if module not in fused:
        return name, 0
    whole, parts = fused[module]
    before = (checkpoint[f"{parent}.{part}.{leaf}"] for part in parts[: parts.index(module)])
    return f"{parent}.{whole}.{leaf}", sum(len(tensor) for tensor in before)


def _unknown(name: str) -> ConfigError:
    what = f"vLLM stores {name} differently from the checkpoint, so its weights could not be replaced"
    return ConfigError(Problem("rollout.engine", what, 'set rollout.engine = "transformers" for this model'))
