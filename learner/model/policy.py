"""The model that is trained: float32 parameters, AdamW, and the weights that are published.

- The parameters are the masters: gradient and optimizer step are in float32, so small steps are not lost. The model
  computes in `dtype`, with the parameters rounded to it, and is published so: workers and learner compute with the same
  numbers.
- `tensors` and `restore` carry everything that the next step depends on: training continues bit for bit.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import ModuleList
from transformers import AutoModelForCausalLM, PreTrainedModel

from echo_queue import config
from echo_queue.errors import ConfigError, Problem
from learner.batch.micro_batches import MicroBatch
from learner.batch.packing import Packing
from learner.model.activations import checkpoint_layers
from learner.model.attention import packing_for
from learner.model.head import Scored
from learner.model.scorer import Scorer
from learner.model.sharding import local, placed_like, shard, whole

MASTER, MOMENTS, RNG = "master/", ("step", "exp_avg", "exp_avg_sq"), "rng"


class Policy:
    """A model with its optimizer. `model`: in float32, from `learner.model.loading`; `dtype`: what it computes in."""

    def __init__(self, model: PreTrainedModel, settings: config.Learner, dtype: torch.dtype = torch.float32) -> None:
        self.model, self.dtype, self.device = model, dtype, model.device
        self.packing: type[Packing] = packing_for(self.device, dtype)
        self._scorer = Scorer(model)
        layers = _layers(model)
        checkpoint_layers(layers, settings.activation_checkpointing)
        if settings.compile:
            for layer in layers:
                layer.compile()
        if dtype != torch.float32:
            shard(self._scorer, layers, dtype, self.device)
        self.masters = dict(model.named_parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self.masters.values() if p.ndim >= 2], "weight_decay": settings.weight_decay},
                {"params": [p for p in self.masters.values() if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=settings.betas,
            fused=True,
        )
        self._clip = settings.grad_clip

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def score(self, batch: MicroBatch, temperature: float) -> Scored:
        """Returns the scores of a micro-batch on this policy's device, with gradient (`Scorer`)."""
        scored: Scored = self._scorer(batch, temperature)
        return scored

    def snapshot(self) -> dict[str, Tensor]:
        """Returns a copy of the weights to publish, by name, tied ones once."""
        return {name: local(master.detach()).to(self.dtype, copy=True) for name, master in self.masters.items()}

    def save_pretrained(self, folder: Path) -> None:
        """Writes the weights as they are published, with their configuration, as a Hugging Face model."""
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(self.model.config, dtype=self.dtype)
        empty.save_pretrained(folder, state_dict=self.snapshot())

    def step(self, lr: float) -> float:
        """Takes one AdamW step with the gradient that has come together, its norm clipped. Returns the norm before.

        No step is taken if the norm is not finite.
        """
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.masters.values(), self._clip)))
        if not math.isfinite(norm):
            return norm
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """Returns masters, optimizer moments and the random state, by name."""
        found = {MASTER + name: local(master.detach()) for name, master in self.masters.items()}
        for name, master in self.masters.items():
            found |= {f"{moment}/{name}": local(tensor) for moment, tensor in self.optimizer.state[master].items()}
        return found | {RNG: torch.get_rng_state()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores what `tensors` returned. Raises `ConfigError` if the tensors belong to another model."""
        shapes = {name.removeprefix(MASTER): t.shape for name, t in tensors.items() if name.startswith(MASTER)}
        if shapes != {name: local(master).shape for name, master in self.masters.items()}:
            raise ConfigError(
                Problem(
                    "model.base",
                    "the run's checkpoint belongs to another model",
                    "give this run another name, or the old base model",
                )
            )
        with torch.no_grad():
            for name, master in self.masters.items():
                local(master).copy_(tensors[MASTER + name])
                keys = {moment: f"{moment}/{name}" for moment in MOMENTS if f"{moment}/{name}" in tensors}
                if keys:
                    state = {moment: placed_like(tensors[key], master) for moment, key in keys.items()}
                    self.optimizer.state[master] = state
        torch.set_rng_state(tensors[RNG])


def _layers(model: PreTrainedModel) -> ModuleList:
    layers = model.base_model.layers
    assert isinstance(layers, ModuleList)
    return layers
