"""The stage of a run that trains LoRA adapters: published are the adapters, served is the base model with them merged.

- The base model is copied from the engine before the first swap, and every tensor of it is compared with the digest
  that the learner signed. A worker with another base model ends with an error that names a tensor.
- The adapters are verified as any published tensors are; then they are merged beside generation, with the function with
  which the learner computes (`echo_queue.weights.lora.merged_weight`). Engines get whole matrices, as they always do.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from echo_queue.errors import ConfigError, Problem
from echo_queue.weights.lora import DESCRIPTION, LoraDescription, adapted, factors, merged_weight
from echo_queue.weights.manifest import Manifest, Route, TensorInfo
from echo_queue.weights.tensors import digest_of, matches
from workers.weights.staging import Stage
from workers.weights.swap import probed
from workers.weights.transport import FetchedPart

if TYPE_CHECKING:
    from torch import Tensor

FIX = "give the worker the learner's configuration and its model.base"


class OtherBase(ConfigError):
    """This worker cannot serve the run's adapters, whatever is published next: its base model is another one."""


class LoraStage(Stage):
    """The stage with a copy of the base model. `weight` returns the engine's tensor of a name."""

    def __init__(self, weight: "Callable[[str], Tensor]") -> None:
        super().__init__()
        self._weight = weight
        self._description: LoraDescription | None = None
        self._base: dict[str, Tensor] = {}
        self._served: dict[str, Tensor] = {}
        self._probes: tuple[TensorInfo, ...] = ()

    @property
    def served(self) -> "Mapping[str, Tensor]":
        return self._served

    def served_manifest(self, manifest: Manifest) -> Manifest:
        """Describes a few of the tensors served: those for which an engine is probed after a swap."""
        return replace(manifest, tensors=self._probes, aliases={})

    def apply(
        self, routes: Sequence[Route], manifest: Manifest, parts: Mapping[str, FetchedPart], chunk_key: bytes | None
    ) -> None:
        """Stages the adapters as any tensors are staged, and merges them. Raises `OtherBase` as well."""
        super().apply(routes, manifest, parts, chunk_key)
        names = adapted(self.tensors)
        description = self._described(manifest)
        if self._description is None:
            self._base = self._copied(description, manifest)
            self._served = dict(self._base)
            self._description = description
        for name in names:
            base, (a, b) = self._base[name], factors(self.tensors, name)
            out = None if self._served[name] is base else self._served[name]
            self._served[name] = merged_weight(base, a, b, description.scaling, out=out)
        few = probed(replace(manifest, tensors=description.base))
        self._probes = tuple(
            replace(one, digest=digest_of(self._served[one.name])) if one.name in names else one for one in few
        )

    def _described(self, manifest: Manifest) -> LoraDescription:
        """Returns what the staged adapters belong to, if it is this worker's base model."""
        if DESCRIPTION not in self.tensors:
            what = "are all weights of a model, and this worker expects LoRA adapters"
            raise OtherBase(Problem(f"weights {manifest.version}", what, FIX))
        found = LoraDescription.of(self.tensors[DESCRIPTION])
        if self._description is not None and (differing := self._description.differing(found)):
            self._refuse_base(manifest, differing)
        return found

    def _copied(self, description: LoraDescription, manifest: Manifest) -> "dict[str, Tensor]":
        """Copies the engine's tensors, which are still those of the base model, and checks their digests."""

        def copy(info: TensorInfo) -> "Tensor | None":
            try:
                tensor = self._weight(info.name).detach().cpu().clone()
            except KeyError:
                return None
            return tensor if matches(tensor, info) else None

        with ThreadPoolExecutor(os.cpu_count(), "base model") as pool:
            copies = dict(zip([info.name for info in description.base], pool.map(copy, description.base), strict=True))
        for name, tensor in copies.items():
            if tensor is None:
                self._refuse_base(manifest, name)
        return {name: tensor for name, tensor in copies.items() if tensor is not None}

    def _refuse_base(self, manifest: Manifest, name: str) -> None:
        what = f"are adapters of another base model than this worker's: {name} differs"
        raise OtherBase(Problem(f"weights {manifest.version}", what, FIX))
