"""The frozen base model: its description, which workers compare, and its merging with adapters.

Its tensors are read from its files one by one whenever they are needed, so that no second copy of it stays in memory.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from safetensors.torch import save_file
from torch import Tensor

from echo_queue.errors import ConfigError, Problem
from echo_queue.weights.delta.codes import dtype_name
from echo_queue.weights.lora import DESCRIPTION, LoraDescription, adapted, factors, merged_weight
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import digest_of
from learner.model.lora.adapters import Adapters

ADAPTER_FOLDER, ADAPTER_FILE, CONFIG_FILE = "adapter", "adapter_model.safetensors", "adapter_config.json"
PEFT_PREFIX = "base_model.model."
"""PEFT's name for the model that it wraps, with which the names in its files begin."""
Tensors = Callable[[], Iterable[tuple[str, Tensor]]]
RENAME = "give this run another name, or the old base model and [model.lora]"


class Origin(NamedTuple):
    """A base model's folder or hub name, as PEFT's file names it; `revision`: None for a folder."""

    name: str
    revision: str | None = None


class FrozenBase:
    """The base model `origin`, as `tensors` yields it: its parameters by name, in the type in which it computes."""

    def __init__(self, origin: Origin, tensors: Tensors, adapters: Adapters, description: LoraDescription) -> None:
        self._origin, self._tensors, self._adapters, self.description = origin, tensors, adapters, description

    @classmethod
    def described(
        cls, origin: Origin, tensors: Tensors, adapters: Adapters, share: Callable[[Callable[[], bytes]], bytes]
    ) -> Self:
        """Reads the base model on rank 0 alone; `share` (`Team.share`) gives all ranks its description."""

        def describe() -> bytes:
            infos = (TensorInfo(key, dtype_name(one), tuple(one.shape), digest_of(one)) for key, one in tensors())
            return LoraDescription(adapters.scaling, tuple(infos)).encode()

        return cls(origin, tensors, adapters, LoraDescription.decode(share(describe)))

    def check(self, stored: Tensor) -> None:
        """Raises `ConfigError` if the adapters of a checkpoint, by their description, belong to something else."""
        found = LoraDescription.of(stored)
        differing = self.description.differing(found)
        if differing is not None:
            what = f"the run's checkpoint holds adapters of another base model: {differing} differs"
            raise ConfigError(Problem("model.base", what, RENAME))
        if found.scaling != self.description.scaling:
            what = f"the run's checkpoint has alpha / rank = {found.scaling:g}, not {self.description.scaling:g}"
            raise ConfigError(Problem("model.lora.alpha", what, RENAME))

    def merged(self, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the base model's tensors on the CPU, with the adapters of a `Policy.snapshot` merged into them."""
        found = {}
        matrices = set(adapted(published))
        for name, tensor in self._tensors():
            if name in matrices:
                a, b = (factor.cpu() for factor in factors(published, name))
                merged_weight(tensor, a, b, self.description.scaling, out=tensor)
            found[name] = tensor
        return found

    def save_adapters(self, folder: Path, published: Mapping[str, Tensor]) -> None:
        """Writes the adapters of a `Policy.snapshot` as PEFT does, so that it loads them onto the base model."""
        folder.mkdir(parents=True)
        tensors = {PEFT_PREFIX + name: tensor.cpu() for name, tensor in published.items() if name != DESCRIPTION}
        save_file(tensors, folder / ADAPTER_FILE, metadata={"format": "pt"})
        settings = self._adapters.config.to_dict()  # type: ignore[no-untyped-call]
        settings |= {
            "base_model_name_or_path": self._origin.name,
            "revision": self._origin.revision,
            "inference_mode": True,
        }
        plain = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
        (folder / CONFIG_FILE).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")
