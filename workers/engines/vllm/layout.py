"""Where the tensors of a checkpoint lie in vLLM's model, which fuses some of them along their first dimension."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from echo_queue.errors import ConfigError, Problem

BLOCK_ROWS = 256


def views(model: Any, checkpoint: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each name of `checkpoint` (a state dict with its variables), the part of vLLM's live `model` that holds it.

    Tied names share one view. Raises `ConfigError` unless every parameter of the model is covered, and every view
    equals its tensor bit for bit: an architecture that vLLM stores otherwise could not be given new weights.
    """
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    packed: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    fused = {part: (whole, parts) for whole, parts in packed.items() for part in parts}
    found: dict[int, Tensor] = {}
    reached: set[str] = set()
    for name, tensor in checkpoint.items():
        if id(tensor) in found:
            continue
        holder, first = _place(name, checkpoint, fused)
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


def renew(views: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copies `tensors` to where they lie; on a CPU with all its cores, since generation stands meanwhile."""
    distinct = {id(views[name]): name for name in tensors}
    on_cpu = all(views[name].device.type == "cpu" for name in distinct.values())
    with ThreadPoolExecutor(os.cpu_count() if on_cpu else 1, "renewing") as cores:
        for _ in cores.map(lambda name: _copy(views[name], tensors[name]), distinct.values()):
            """Raises what went wrong."""


def _copy(view: Tensor, tensor: Tensor) -> None:
    """Transposed ones go in blocks: a row of the result is then written in pieces that are worth a page."""
    step = len(view) if view.is_contiguous() else BLOCK_ROWS
    for first in range(0, len(view), step):
        view[first : first + step].copy_(tensor[first : first + step])


def _place(name: str, checkpoint: Mapping[str, Tensor], fused: Mapping[str, tuple[str, list[str]]]) -> tuple[str, int]:
    """The parameter that holds `name`, and at which index of its first dimension."""
    path, _, leaf = name.rpartition(".")
    parent, _, module = path.rpartition(".")
    if module not in fused:
        return name, 0
    whole, parts = fused[module]
    before = (checkpoint[f"{parent}.{part}.{leaf}"] for part in parts[: parts.index(module)])
    return f"{parent}.{whole}.{leaf}", sum(len(tensor) for tensor in before)


def _unknown(name: str) -> ConfigError:
    what = f"vLLM stores {name} otherwise than the checkpoint does, so its weights could not be renewed"
    return ConfigError(Problem("rollout.engine", what, 'set rollout.engine = "transformers" for this model'))
