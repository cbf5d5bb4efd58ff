"""The model that is trained: its weights as published, float32 masters and AdamW.

- In float32, the model's parameters are the masters. In bfloat16, forward, backward and publication use bfloat16
  weights; the gradient is summed and the optimizer steps in float32 masters, which are rounded back after each step.
  Workers and learner thus compute with the same numbers, and small steps are not lost.
- `tensors` and `restore` carry everything that the next step depends on: training continues bit for bit.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, PreTrainedModel

from echo_queue import config
from echo_queue.errors import ConfigError, Problem
from learner.model.forward import prepare_model

MASTER, MOMENTS, RNG = "master/", ("step", "exp_avg", "exp_avg_sq"), "rng"


class Policy:
    """A model with its optimizer. `model` must be in float32; `dtype` is the type it computes and is published in."""

    def __init__(self, model: PreTrainedModel, settings: config.Learner, dtype: torch.dtype = torch.float32) -> None:
        self.masters = {
            name: Parameter(parameter.detach().clone()) if dtype != torch.float32 else parameter
            for name, parameter in model.named_parameters()
        }
        self.model = model.to(dtype)  # type: ignore[arg-type]
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
        return int(self.model.get_input_embeddings().weight.shape[0])

    def weights(self) -> dict[str, Tensor]:
        """Returns the parameters to publish, by name, tied ones once. They change with the next step."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def collect(self) -> None:
        """Adds the last backward pass's gradient to the update's. Call it after every micro-batch."""
        for (_, parameter), master in zip(self.model.named_parameters(), self.masters.values(), strict=True):
            if parameter is not master and parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def step(self, lr: float) -> float:
        """Takes one AdamW step with the collected gradient, its norm clipped. Returns the norm before clipping.

        No step is taken if the norm is not finite.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters.values(), self._clip))
        if not math.isfinite(norm):
            return norm
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._round()
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """Returns masters, optimizer moments and the random state, by name."""
        found = {MASTER + name: master.detach() for name, master in self.masters.items()}
        for name, master in self.masters.items():
            found |= {f"{moment}/{name}": tensor for moment, tensor in self.optimizer.state[master].items()}
        return found | {RNG: torch.get_rng_state()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores what `tensors` returned. Raises `ConfigError` if the tensors belong to another model."""
        shapes = {name.removeprefix(MASTER): t.shape for name, t in tensors.items() if name.startswith(MASTER)}
        if shapes != {name: master.shape for name, master in self.masters.items()}:
            raise ConfigError(
                Problem(
                    "model.base",
                    "the run's checkpoint belongs to another model",
                    "give this run another name, or the old base model",
                )
            )
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(tensors[MASTER + name])
                moments = {moment: tensors[f"{moment}/{name}"] for moment in MOMENTS if f"{moment}/{name}" in tensors}
                if moments:
                    self.optimizer.state[master] = moments
        torch.set_rng_state(tensors[RNG])
        self._round()

    def _round(self) -> None:
        with torch.no_grad():
            for (_, parameter), master in zip(self.model.named_parameters(), self.masters.values(), strict=True):
                if parameter is not master:
                    parameter.copy_(master)


def load_model(settings: config.Config) -> PreTrainedModel:
    """Loads the base model in float32, prepared for `forward.score`. Raises `ConfigError` if it cannot be loaded."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(settings.base_model, dtype=torch.float32)
    except (OSError, ValueError) as error:
        missing = settings.model.base == "init" and not (Path(settings.base_model) / "config.json").exists()
        what = "has not been made yet" if missing else f"cannot be loaded: {str(error).splitlines()[0]}"
        fix = (
            "run `echo-queue init-model` first" if missing else "name a folder or hub model that transformers can load"
        )
        raise ConfigError(Problem("model.base", f"{settings.base_model} {what}", fix)) from None
    return prepare_model(model.eval())
