"""Loads the base model from its safetensors files, each rank its own rows.

- A model is built without memory, on the meta device; it is sharded, and only then each rank gets memory for its rows
  and reads them. No process ever holds more than that.
- An architecture that would come out wrong, and files that do not match it, are refused with the reason.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from echo_queue import config
from echo_queue.errors import ConfigError, Problem
from echo_queue.models import model_refusals
from echo_queue.models.hub import base_folder
from echo_queue.weights.lora import LoraDescription
from echo_queue.weights.tensors import matches
from learner.model.architecture import check_architecture
from learner.model.attention import ATTENTION, unsupported
from learner.model.lora.adapters import Adapters
from learner.model.lora.frozen_base import FrozenBase, Origin
from learner.model.policy import Policy
from learner.model.scorer import Scorer
from learner.model.sharding import materialise, shard
from learner.model.weight_files import WeightFiles
from learner.ranks.team import Team

ROUTER = re.compile(r"\.mlp\.(gate|router)\.(weight|bias)$")
"""The parameters of routers: `gate` of Qwen3-MoE and Mixtral, `router` of gpt-oss."""
UNSET = -1
"""The value of an integer buffer before it is computed."""


def load_policy(settings: config.Config, device: torch.device, team: Team) -> Policy:
    """Loads this rank's part of the policy. Raises `ConfigError` if the base model cannot be trained."""
    dtype = getattr(torch, settings.model.dtype)
    with _loading(settings):
        if settings.model.lora.rank:
            return _load_adapted(settings, dtype, device, team)
        model, files = _open(settings, torch.float32)
        if settings.learner.freeze_router:
            freeze_router(model)
        policy = Policy(model, settings.learner, dtype, team, device)
        _fill(model, files)
    return policy


def _load_adapted(settings: config.Config, dtype: torch.dtype, device: torch.device, team: Team) -> Policy:
    """Loads a policy that trains adapters beside a frozen base model."""
    model, files = _open(settings, dtype)
    adapters = Adapters(model, settings.model.lora)
    policy = Policy(model, settings.learner, dtype, team, device, adapters=adapters)
    _fill(model, files)
    adapters.initialise(settings.run.seed)
    policy.frozen_base = FrozenBase.described(
        _origin(settings), lambda: files.whole(model, dtype), adapters, share=team.share
    )
    return policy


@contextmanager
def frozen_base(settings: config.Config, description: LoraDescription) -> Iterator[FrozenBase]:
    """Gives the base model to which a version's adapters belong, without values: its tensors are read when they are
    needed, and compared with `description` then.

    Raises `ConfigError`, also inside the block, if it is another one, or if the configuration has no such adapters.
    """
    if not settings.model.lora.rank:
        what = "is 0, but this version is one of adapters"
        raise ConfigError(Problem("model.lora.rank", what, "give the configuration with which the run was started"))
    dtype = getattr(torch, settings.model.dtype)
    infos = {info.name: info for info in description.base}
    with _loading(settings):
        model, files = _open(settings, dtype)
        adapters = Adapters(model, settings.model.lora)

        def compared() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in files.whole(model, dtype):
                if name not in infos or not matches(tensor, infos[name]):
                    what = f"is another one than that of this version's adapters: {name} differs"
                    raise ConfigError(Problem("model.base", what, "give the configuration of the run"))
                yield name, tensor

        yield FrozenBase(_origin(settings), compared, adapters, description)


def _origin(settings: config.Config) -> Origin:
    name = settings.base_model
    return Origin(name, None if Path(name).is_dir() else settings.model.revision)


def load_reference(settings: config.Config, device: torch.device, team: Team) -> Scorer:
    """Loads the base model for the KL term, without gradients, in the type in which the policy computes."""
    dtype = getattr(torch, settings.model.dtype)
    with _loading(settings):
        model, files = _open(settings, dtype)
        scorer = Scorer(model.requires_grad_(False))
        if team.size > 1:
            shard(scorer, scorer.layers, dtype, device, trained=False)
        materialise(scorer, device)
        _fill(model, files)
    return scorer


def freeze_router(model: PreTrainedModel) -> None:
    """Leaves the routers of a mixture of experts out of training. Raises `ConfigError` if there are none."""
    routers = [parameter for name, parameter in model.named_parameters() if ROUTER.search(name)]
    if not routers:
        what = f"is set, but {type(model).__name__} is no mixture of experts"
        raise ConfigError(Problem("learner.freeze_router", what, "remove it"))
    for router in routers:
        router.requires_grad_(False)


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Sets `model` up for `Scorer`, without dropout. Its architecture must have passed `check_architecture`."""
    model.set_attn_implementation(ATTENTION)
    model.eval()
    return model


def _open(settings: config.Config, dtype: torch.dtype) -> tuple[PreTrainedModel, WeightFiles]:
    """Returns the model, prepared for `Scorer` and without values on the meta device, and its files."""
    folder = base_folder(settings)
    architecture: PretrainedConfig = AutoConfig.from_pretrained(folder)
    longest = settings.model.max_prompt_tokens + settings.model.max_new_tokens
    if problems := tuple(model_refusals(architecture.to_dict(), longest)):
        raise ConfigError(*problems)
    check_architecture(architecture)
    files = WeightFiles.find(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(architecture, dtype=dtype)
    files.check(model)
    return prepare(model), files


def _fill(model: PreTrainedModel, files: WeightFiles) -> None:
    """Gives the model its values, once it has memory for them."""
    compute_buffers(model)
    files.read_into(model)


@torch.no_grad()
def compute_buffers(model: PreTrainedModel) -> None:
    """Gives the model's buffers, which no file holds, the values that transformers computes: rotary frequencies."""
    for buffer in model.buffers():
        buffer.fill_(math.nan if buffer.is_floating_point() else UNSET)
    for module in model.modules():
        if next(module.buffers(recurse=False), None) is not None:
            model._init_weights(module)
    if any(buffer.isnan().any() or (buffer == UNSET).all() for buffer in model.buffers()):
        raise unsupported("buffers that transformers does not compute")


@contextmanager
def _loading(settings: config.Config) -> Iterator[None]:
    """Says in a `ConfigError` why transformers or safetensors cannot load the base model."""
    name = settings.base_model
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        missing = settings.model.base == "init" and not (Path(name) / "config.json").exists()
        what = "has not been made yet" if missing else f"cannot be loaded: {str(error).splitlines()[0]}"
        fix = (
            "run `echo-queue init-model` first" if missing else "name a folder or hub model that transformers can load"
        )
        raise ConfigError(Problem("model.base", f"{name} {what}", fix)) from None
