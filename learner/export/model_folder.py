"""Writes a model as a Hugging Face folder, which is whole or does not exist.

- A version's weights are written under the names, in the files and in the type of its base model's architecture, with
  the base model's tokenizer, chat template and generation settings. Adapters are merged into the base model by the
  function that the learner computes with, or written by themselves as PEFT does.
- A folder that is replaced stands until the new one is whole.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.models.hub import FILES
from echo_queue.weights.lora import DESCRIPTION, LoraDescription
from learner.model.loading import frozen_base
from learner.model.lora.frozen_base import ADAPTER_FILE, ADAPTER_FOLDER
from learner.model.weight_files import open_to_readers

GENERATION = "generation_config.json"
RUNS_OWN = "give the configuration with which the run was started"


def write_version(config: Config, base: Path, weights: Path, folder: Path, *, adapter: bool) -> None:
    """Writes the model of a version's file of weights to `folder`, which must not exist.

    `base`: the folder of the run's base model. `adapter`: the adapters alone, as PEFT's folder, which is `adapter` in
    the folder otherwise. Raises `ConfigError` for weights that do not belong to the base model, or have no adapters.
    """
    tensors = load_file(weights)
    if DESCRIPTION in tensors:
        with frozen_base(config, LoraDescription.of(tensors[DESCRIPTION])) as frozen:
            frozen.save_adapters(folder if adapter else folder / ADAPTER_FOLDER, tensors)
            if adapter:
                return
            tensors = frozen.merged(tensors)
    elif adapter:
        what = "has no adapters: the run trains all weights"
        raise ConfigError(Problem("--adapter", what, "leave --adapter out, and get the whole model"))
    _save(config, base, tensors, folder)
    add_companions(base, folder)


def _save(config: Config, base: Path, tensors: Mapping[str, Tensor], folder: Path) -> None:
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(base), dtype=getattr(torch, config.model.dtype)
        )
    shapes = {name: parameter.shape for name, parameter in empty.named_parameters()}  # tied ones once
    known = {name for name, _ in empty.named_parameters(remove_duplicate=False)}
    differing = [name for name, shape in shapes.items() if name not in tensors or tensors[name].shape != shape]
    if differing := differing or sorted(tensors.keys() - known):
        what = f"is another one than that of this version: {differing[0]} differs"
        raise ConfigError(Problem("model.base", what, RUNS_OWN))
    empty.save_pretrained(folder, state_dict={name: tensors[name] for name in shapes})
    open_to_readers(folder)


def add_companions(base: Path, folder: Path) -> None:
    """Adds what a model is used with: the base model's tokenizer with its chat template, and generation settings."""
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    if (base / GENERATION).is_file():
        shutil.copyfile(base / GENERATION, folder / GENERATION)


def copy_model(source: Path, folder: Path) -> None:
    """Copies the files of a model's folder, with its adapters if it has some."""
    folder.mkdir(parents=True)
    for pattern in (*FILES, ADAPTER_FILE):
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    if (source / ADAPTER_FOLDER).is_dir():
        copy_model(source / ADAPTER_FOLDER, folder / ADAPTER_FOLDER)


def put_in_place(temporary: Path, folder: Path) -> None:
    """Gives a whole folder its name. One that is there stands until then."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        failpoints.step("remove model", lambda: folder.rename(old))
    failpoints.step("rename model", lambda: temporary.rename(folder))
    shutil.rmtree(old, ignore_errors=True)
