"""Opens the model folder that every engine begins with, and checks whether tensors fit the model."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from echo_queue.errors import ConfigError, Problem
from echo_queue.models.refusals import too_long
from echo_queue.records import Version


def open_model(folder: str, dtype: str) -> PreTrainedModel:
    """Opens a model folder or hub name on the CPU. Raises `ConfigError` if that fails."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    except (OSError, ValueError) as error:
        message = str(error).strip().splitlines()[0]
        raise ConfigError(
            Problem("model.base", f"cannot be opened from {folder}: {message}", "name a model folder or a hub name")
        ) from None
    return model


def stop_tokens(model: PreTrainedModel) -> list[int]:
    """Returns the stop tokens that the model itself names; its tokenizer may add others."""
    generation = getattr(model.generation_config, "eos_token_id", None)
    named = model.config.eos_token_id if generation is None else generation
    return [named] if isinstance(named, int) else list(named or [])


def too_short(config: PreTrainedConfig, max_tokens: int) -> Iterator[Problem]:
    """Yields a problem if the model takes less than `max_tokens`: the longest prompt plus its completion."""
    yield from too_long(max_tokens, getattr(config, "max_position_embeddings", None))


def misfits(
    parameters: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    version: Version,
    served: torch.dtype | None = None,
) -> Iterator[Problem]:
    """Yields why `tensors` cannot become the model's weights. Tied names share one object; one of them is enough.

    `served`: the type of the published weights, where the engine holds their numbers in a wider one.
    """
    fix = "publish the state dict of the model that the workers were started with"
    name_of: dict[int, str] = {}
    for name, tensor in tensors.items():
        where = f"weights {version}, {name}"
        if name not in parameters:
            yield Problem(where, "is unknown to the model", fix)
            continue
        if parameters[name].shape != tensor.shape:
            yield Problem(where, f"has shape {list(tensor.shape)}, not {list(parameters[name].shape)}", fix)
        if (held := served or parameters[name].dtype) != tensor.dtype:
            here, there = _type_name(held), _type_name(tensor.dtype)
            yield Problem(
                where, f"is {there}, the engine holds {here}", "give learner and workers the same model.dtype"
            )
        twin = name_of.setdefault(id(parameters[name]), name)
        if twin != name and tensors[twin] is not tensor and not torch.equal(tensors[twin], tensor):
            yield Problem(where, f"is tied to {twin} but differs from it", fix)
    for name, parameter in parameters.items():
        if id(parameter) not in name_of:
            yield Problem(f"weights {version}, {name}", "is missing", fix)


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
