"""The parameters that LoRA adapters add to a model, and the matrices that they change (`learner.model.lora`)."""

from collections.abc import Mapping
from dataclasses import dataclass

from echo_queue.config import Lora
from echo_queue.models.shape import ModelShape

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Phi-3's layers that are several in one. Their adapters are reckoned as those of the several, which are larger."""


@dataclass(frozen=True)
class LoraShape:
    """The sizes of all adapters together. `names`: the linear layers that have one."""

    parameters: int
    """Elements of all factors A and B: rank · (in + out) for each matrix."""
    adapted: int
    """Elements of the matrices of the base model that have adapters."""
    largest: int
    """Elements of the largest of those matrices."""
    names: frozenset[str]


def linear_layers(shape: ModelShape) -> Mapping[str, tuple[int, int, int]]:
    """Returns in, out and number of the decoder's linear layers by name. Experts are none: they are fused tensors."""
    hidden, inner, dense = shape.hidden, shape.intermediate, shape.layers - shape.sparse_layers
    attention = {
        "q_proj": (hidden, shape.queries, shape.layers),
        "k_proj": (hidden, shape.keys, shape.layers),
        "v_proj": (hidden, shape.keys, shape.layers),
        "o_proj": (shape.queries, hidden, shape.layers),
    }
    mlp = {"gate_proj": (hidden, inner, dense), "up_proj": (hidden, inner, dense), "down_proj": (inner, hidden, dense)}
    return attention | (mlp if dense else {})


def lora_shape(settings: Lora, shape: ModelShape) -> LoraShape | None:
    """Returns the adapters' sizes; None if all weights are trained. Names that the model lacks count nothing."""
    if not settings.rank:
        return None
    every = linear_layers(shape)
    named = every if settings.target_modules == "all-linear" else settings.target_modules
    names = {part for name in named for part in FUSED.get(name, (name,))} & every.keys()
    taken = [every[name] for name in names]
    return LoraShape(
        parameters=sum(settings.rank * (inputs + outputs) * number for inputs, outputs, number in taken),
        adapted=sum(inputs * outputs * number for inputs, outputs, number in taken),
        largest=max((inputs * outputs for inputs, outputs, _ in taken), default=0),
        names=frozenset(names),
    )


def trained_parameters(settings: Lora, shape: ModelShape) -> int:
    """Returns the number of parameters that are trained, saved and published: the adapters', or all."""
    lora = lora_shape(settings, shape)
    return lora.parameters if lora else shape.total
