"""The LoRA adapters of the learner's model: attached and described by PEFT, computed as `MergedLinear`.

- The base model is frozen, in the type in which the model computes. The adapters are float32 masters.
- A is drawn from the run's seed, whole on every rank, and B is zero (arXiv 2106.09685, §4.1): any number of ranks
  begins at the same adapters, and with exactly the base model.
- `disabled` gives the base model back, as the reference of the KL term.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Parameter
from transformers import PreTrainedModel

from echo_queue import config
from echo_queue.errors import ConfigError, Problem
from learner.model.lora.merged_linear import MergedLinear
from learner.model.sharding import first_row, local

ADAPTER = "default"
"""The name that PEFT gives to a model's only adapter."""


class Adapters:
    """The adapters of one model."""

    def __init__(self, model: PreTrainedModel, settings: config.Lora) -> None:
        """Freezes `model`, which may be on the meta device, and attaches adapters to it.

        Raises `ConfigError` if a layer that is to have one does not exist, or is not a linear layer of the decoder.
        """
        # It takes seconds to import, which only runs with adapters should wait for.
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

        targets = settings.target_modules
        self.config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,  # type: ignore[arg-type] # any number does
            target_modules=targets if isinstance(targets, str) else list(targets),
            task_type="CAUSAL_LM",
        )
        self.scaling = settings.alpha / settings.rank
        self._enabled = True
        try:
            inject_adapter_in_model(self.config, model, low_cpu_mem_usage=model.device.type == "meta")
        except ValueError as error:  # none of the layers exists, or one is of a kind that takes no adapter
            raise _unsuited(str(error).splitlines()[0]) from None
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
        self._layers: list[Any] = list(layers.values())
        for target in [] if isinstance(targets, str) else targets:
            if not any(name.endswith(f".{target}") for name in layers):
                raise _unsuited(f"{target} is no layer of {type(model).__name__}")
        inside = {id(module) for module in model.base_model.layers.modules()}  # type: ignore[union-attr]
        for name, layer in zip(layers, self._layers, strict=True):
            if id(layer) not in inside or type(layer.base_layer) is not Linear:
                raise _unsuited(f"{name} is not a linear layer of the decoder")
            wide = torch.promote_types(layer.base_layer.weight.dtype, torch.float32)
            layer.lora_A.to(wide)
            layer.lora_B.to(wide)
            layer.forward = partial(self._forward, layer)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Sets every A to values drawn from `seed`, as PEFT draws them, and every B to zero."""
        generator = torch.Generator().manual_seed(seed)
        for layer in self._layers:
            a, b = _factors(layer)
            drawn = torch.empty(a.shape, dtype=torch.float32)
            torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
            mine, first = local(a.detach()), first_row(a)
            mine.copy_(drawn[first : first + len(mine)])
            local(b.detach()).zero_()

    def parameters(self, model: PreTrainedModel) -> dict[str, Parameter]:
        """Returns the adapters' parameters by the names that they have in PEFT's files, without its prefix."""
        found = ((name, one) for name, one in model.named_parameters() if base_name(name) is None)
        return {name.replace(f".{ADAPTER}.", "."): one for name, one in found}

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Makes the model compute without its adapters inside the block."""
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = True

    def _forward(self, layer: Any, hidden: Tensor) -> Any:
        base = layer.base_layer
        if not self._enabled:
            return base(hidden)
        return MergedLinear.apply(hidden, base.weight, base.bias, *_factors(layer), self.scaling)  # type: ignore[no-untyped-call]


def _factors(layer: Any) -> tuple[Tensor, Tensor]:
    """Returns A [rank, in] and B [out, rank] of a layer of PEFT's."""
    return layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight


def base_name(parameter: str) -> str | None:
    """Returns the name of a parameter in the base model; None for an adapter's."""
    if ".lora_A." in parameter or ".lora_B." in parameter:
        return None
    return parameter.replace(".base_layer.", ".")


def _unsuited(what: str) -> ConfigError:
    fix = 'name linear layers of the model\'s decoder, such as "q_proj", or set "all-linear"'
    return ConfigError(Problem("model.lora.target_modules", what, fix))
