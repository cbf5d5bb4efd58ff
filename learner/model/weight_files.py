"""The safetensors files of a base model, in a folder or on the hub: a process reads the rows that it needs.

The files must name each tensor as the model itself does, or be those of a mixture that `stack_experts` knows.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from echo_queue.errors import ConfigError, Problem
from echo_queue.models.weight_files import weight_files
from learner.model.lora.adapters import base_name
from learner.model.sharding import first_row, local
from learner.model.stored_tensors import Stored, StoredTensor, stack_experts

NAMED = 3
"""The number of tensors that an error names."""
COMPUTED = r"rotary_emb\.inv_freq"
"""Tensors of old files that transformers computes, as it says in `_adjust_missing_and_unexpected_keys`."""


class WeightFiles:
    """The tensors of a model's files, by name. Adapters of a model are in no file, and are passed over."""

    def __init__(self, model: str, tensors: Mapping[str, Stored]) -> None:
        self._model, self._tensors = model, tensors

    @classmethod
    def find(cls, folder: str) -> "WeightFiles":
        """Finds the files of a model's folder. Raises `OSError`."""
        tensors = {tensor.name: tensor for file in weight_files(folder) for tensor in _contents(file)}
        return cls(folder, stack_experts(tensors))

    def check(self, model: PreTrainedModel) -> None:
        """Raises `ConfigError` unless the files hold every parameter of `model` in its shape, and nothing else."""
        parameters = _parameters(model)
        aliases = {name for names, _ in parameters for name in names}
        ignored = re.compile("|".join([COMPUTED, *(model._keys_to_ignore_on_load_unexpected or ())]))
        lacking = [names[0] for names, _ in parameters if not self._stored(names)]
        unknown = [name for name in self._tensors if name not in aliases and not ignored.search(name)]
        differing = [
            name
            for names, parameter in parameters
            for name in self._stored(names)
            if self._tensors[name].shape != tuple(parameter.shape)
        ]
        for what, names in {"lack": lacking, "hold an unknown": unknown, "hold in another shape": differing}.items():
            if names:
                raise self._error(what, names)

    @torch.no_grad()
    def read_into(self, model: PreTrainedModel) -> None:
        """Reads this process's rows of every parameter. Raises `ConfigError` if tied parameters differ in the files."""
        for names, parameter in _parameters(model):
            mine, first = local(parameter.detach()), first_row(parameter)
            stored, *tied = self._stored(names)
            for at, rows in self._tensors[stored].rows(first, len(mine)):
                mine[at : at + len(rows)].copy_(rows)
            for name in tied:
                read = self._tensors[name].rows(first, len(mine))
                parts = ((mine[at : at + len(rows)], rows) for at, rows in read)
                if not all(torch.equal(part, rows.to(part)) for part, rows in parts):
                    raise self._error("hold different values of", [stored, name])

    def whole(self, model: PreTrainedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yields every parameter of the base model, whole and as `dtype`; tied ones once, by their first name."""
        for names, _ in _parameters(model):
            stored = self._stored(names)[0]
            tensor = torch.empty(self._tensors[stored].shape, dtype=dtype)
            for at, rows in self._tensors[stored].rows(0, len(tensor)):
                tensor[at : at + len(rows)] = rows
            yield names[0], tensor

    def _stored(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self._tensors]

    def _error(self, what: str, names: Sequence[str]) -> ConfigError:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        listed = f"{self._model}: its files {what} {', '.join(names[:NAMED])}{more}"
        fix = "use a model whose safetensors files name tensors as its architecture does, such as Qwen3 or Llama"
        return ConfigError(Problem("model.base", listed, fix))


def _parameters(model: PreTrainedModel) -> list[tuple[list[str], Parameter]]:
    """Returns every parameter of the base model with its names: tied ones have several."""
    names = defaultdict[Parameter, list[str]](list)
    for given, parameter in model.named_parameters(remove_duplicate=False):
        if name := base_name(given):
            names[parameter].append(name)
    return [(listed, parameter) for parameter, listed in names.items()]


def open_to_readers(folder: Path) -> None:
    """Gives a written model's files the rights of its config.json: safetensors writes files that only their owner may
    read."""
    rights = (folder / "config.json").stat().st_mode
    for file in folder.rglob("*.safetensors"):
        file.chmod(rights)


def _contents(path: Path) -> Iterator[StoredTensor]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            yield StoredTensor(path, name, tuple(file.get_slice(name).get_shape()))
