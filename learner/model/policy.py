"""The model that is trained: float32 parameters, AdamW, and the weights that are published.

- The parameters are the masters: gradient and optimizer step are in float32, so small steps are not lost. The model
  computes in `dtype`, with the parameters rounded to it, and is published so: workers and learner compute with the same
  numbers.
- Each rank of the team holds its rows of every parameter and of its moments (`learner.model.sharding`).
- With LoRA the masters are those of the adapters alone (`learner.model.lora`), and so is what is published and saved.
- `pieces` and `restore` carry everything that the next step depends on. So training continues bit for bit on a CPU, and
  with `learner.deterministic` on GPUs, whose kernels add numbers up in any order otherwise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM, PreTrainedModel

from echo_queue import config
from echo_queue.errors import ConfigError, Problem
from echo_queue.weights.lora import DESCRIPTION
from learner.batch.micro_batches import MicroBatch
from learner.batch.packing import Packing
from learner.model.activations import checkpoint_layers
from learner.model.attention import packing_for
from learner.model.compilation import compile_model
from learner.model.float32_products import float32_products
from learner.model.head import Scored
from learner.model.lora.adapters import Adapters
from learner.model.lora.frozen_base import ADAPTER_FOLDER, FrozenBase
from learner.model.optimizer import MOMENTS, HostOptimizer, Optimizer
from learner.model.pieces import Piece
from learner.model.scorer import Scorer
from learner.model.sharding import first_row, local, materialise, rounded_type, shard, whole
from learner.model.weight_files import open_to_readers
from learner.ranks.team import Team

MASTER, RNG = "master/", "rng"


class Policy:
    """A model with its optimizer; every rank of `team` has one, and all call its methods together.

    `model`: with float32 parameters, on its device; or on the meta device, from `learner.model.loading`, which fills in
    the values of the memory that it is given on `device` here. `dtype`: what the model computes in. `adapters`: those
    of the model, whose other parameters are then frozen, in `dtype`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: config.Learner,
        dtype: torch.dtype = torch.float32,
        team: Team | None = None,
        device: torch.device | None = None,
        *,
        adapters: Adapters | None = None,
    ) -> None:
        self.model, self.dtype, self.device, self.adapters = model, dtype, device or model.device, adapters
        self.frozen_base: FrozenBase | None = None
        """With adapters: the base model to which they belong."""
        self.packing: type[Packing] = packing_for(self.device, dtype, model)
        self.team = team or Team.alone()
        self._scorer = Scorer(model)
        checkpoint_layers(self._scorer.layers, settings.activation_checkpointing)
        compile_model(self._scorer, settings, self.device)
        if self.team.size > 1 or dtype != model.dtype:
            shard(self._scorer, self._scorer.layers, dtype, self.device)
        if model.device.type == "meta":
            materialise(self._scorer, self.device)
        self.masters = dict(model.named_parameters()) if adapters is None else adapters.parameters(model)
        self.offload = settings.offload
        kind = HostOptimizer if self.offload else Optimizer
        self.optimizer = kind(list(self.masters.values()), settings)
        self._clip = settings.grad_clip
        self._read_until: torch.cuda.Event | None = None

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def products(self) -> AbstractContextManager[object]:
        """Returns the context in which passes, forward and backward, are computed as this device does it fast."""
        return float32_products(self.dtype, self.device)

    def score(self, batch: MicroBatch, temperature: float) -> Scored:
        """Returns the scores of a micro-batch on this policy's device, with gradient (`Scorer`)."""
        scored: Scored = self._scorer(batch, temperature)
        return scored

    def published(self) -> dict[str, Tensor]:
        """Returns the weights to publish, by name, tied ones once: this rank's rows, before they are rounded.

        What no rank has rows of is whole on all of them.
        """
        published = {name: master.detach() for name, master in self.masters.items()}
        if self.frozen_base is not None:
            published[DESCRIPTION] = self.frozen_base.description.tensor()
        return published

    def score_base(self, batch: MicroBatch, temperature: float) -> Scored:
        """Returns the scores by the base model, without gradient; only a policy with adapters still has it."""
        if self.adapters is None:
            raise RuntimeError("all weights are trained, so the base model is gone")
        with torch.no_grad(), self.adapters.disabled():
            return self.score(batch, temperature)

    def snapshot(self) -> dict[str, Tensor]:
        """Returns rank 0 a copy of the weights that are published, by name; nothing to the other ranks.

        Of several ranks, the weights go to the CPU: no rank's device holds more than one whole tensor at a time.
        """
        copies: dict[str, Tensor] = {}
        for name, master in self.published().items():
            if self.team.size == 1:
                copies[name] = local(master).to(rounded_type(master, self.dtype), copy=True)
                continue
            published = whole(master.to(rounded_type(master, self.dtype)))
            if self.team.first:
                copies[name] = published.cpu()
        return copies

    def save_pretrained(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes a `snapshot` with the model's configuration, as a Hugging Face model. Only rank 0 calls it.

        Adapters are merged into the base model, and also written by themselves, in PEFT's format, to a folder in it.
        """
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(self.model.config, dtype=self.dtype)
        if self.frozen_base is not None:
            self.frozen_base.save_adapters(folder / ADAPTER_FOLDER, weights)
            weights = self.frozen_base.merged(weights)
        empty.save_pretrained(folder, state_dict=dict(weights))  # which takes its entries
        open_to_readers(folder)

    def clip_gradient(self) -> Tensor:
        """Scales the gradient that has come together down to the norm allowed. Returns the norm before, on the device:
        reading it waits for every kernel."""
        gradients = [local(master.grad) for master in self.masters.values() if master.grad is not None]
        norm = self._norm(gradients)
        # As `torch.nn.utils.clip_grads_with_norm_` does it.
        factor = (self._clip / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    def keep_until(self, read: "torch.cuda.Event | None") -> None:
        """Keeps masters and moments as they are until a GPU has `read` them; None: they may change."""
        self._read_until = read

    def before_change(self) -> None:
        """Makes the GPU, and not this thread, wait before whatever changes masters or moments (`keep_until`)."""
        if self._read_until is not None:
            torch.cuda.current_stream(self.device).wait_event(self._read_until)
            self._read_until = None

    def step(self, lr: float) -> None:
        """Takes one AdamW step with the gradient, which must be finite."""
        self.before_change()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def expect_backward(self, *, last: bool) -> None:
        """Prepares for a backward pass, the `last` one of an optimizer step or not.

        A rank alone puts its gradient in place in the last one. Before it, FSDP adds up what each micro-batch gives
        where it lies: the same sums in the same order, without two copies of all gradients in float32 each time.
        Several ranks keep their own rows alone, so they reduce each micro-batch's gradient.
        """
        if isinstance(self._scorer, FSDPModule) and self.team.size == 1:
            self._scorer.set_requires_gradient_sync(last)

    def forget_gathered(self) -> None:
        """Lets go of what FSDP gathered in the last forward pass, for whoever writes into the masters after it.

        The layers give it up by themselves, the embeddings and the head only after a backward pass.
        """
        if isinstance(self._scorer, FSDPModule):
            self._scorer.reshard()

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Returns the norm of all ranks' rows together."""
        norm = torch.nn.utils.get_total_norm(gradients)
        return self.team.sum(norm.double().square()).sqrt().to(norm) if self.team.size > 1 else norm

    def pieces(self) -> list[Piece]:
        """Returns this rank's rows of masters and moments; rank 0 adds what is not cut into rows."""
        pieces = [piece for piece in self._state() if self.team.first or piece.shape]
        more = [_piece(RNG, torch.get_rng_state())] if self.team.first else []
        if self.team.first and self.frozen_base is not None:
            more.append(_piece(DESCRIPTION, self.frozen_base.description.tensor()))
        return [piece for piece in [*pieces, *more] if piece.rows]

    @torch.no_grad()
    def restore(self, stored: Mapping[str, tuple[int, ...]], read: Callable[[Sequence[Piece]], None]) -> None:
        """Restores what all ranks' `pieces` held, on as many ranks as there are now.

        `stored`: the shape of every whole tensor. `read`: fills in the pieces that it is given. Raises `ConfigError` if
        the state belongs to another model.
        """
        self._check(stored, read)
        self.optimizer.state.clear()
        stepped = [name for name in self.masters if all(f"{moment}/{name}" in stored for moment in MOMENTS)]
        self.optimizer.make_room([self.masters[name] for name in stepped])
        rng = torch.get_rng_state()
        pieces = [*self._state(), _piece(RNG, rng)]
        read([piece for piece in pieces if piece.rows])
        torch.set_rng_state(rng)

    def _check(self, stored: Mapping[str, tuple[int, ...]], read: Callable[[Sequence[Piece]], None]) -> None:
        """Raises `ConfigError` if the stored state belongs to another model, or to other adapters."""
        adapted = DESCRIPTION in stored
        if adapted != (self.adapters is not None):
            what = f"the run's checkpoint holds {'LoRA adapters' if adapted else 'all weights of the model'}"
            fix = "give this run another name, or the old rank"
            raise ConfigError(Problem("model.lora.rank", what, fix))
        if self.frozen_base is not None:
            description = torch.empty(stored[DESCRIPTION], dtype=torch.uint8)
            read([_piece(DESCRIPTION, description)])
            self.frozen_base.check(description)
        shapes = {name.removeprefix(MASTER): shape for name, shape in stored.items() if name.startswith(MASTER)}
        if shapes != {name: tuple(master.shape) for name, master in self.masters.items()}:
            where, other = (
                ("model.lora", "adapters of another rank, or of other layers")
                if adapted
                else ("model.base", "another model")
            )
            what = f"the run's checkpoint belongs to {other}"
            fix = "give this run another name, or the old base model" + (" and [model.lora]" if adapted else "")
            raise ConfigError(Problem(where, what, fix))

    def _state(self) -> Iterator[Piece]:
        """Yields this rank's rows of masters and moments, by the names that they have in a checkpoint."""
        for name, master in self.masters.items():
            yield _piece(MASTER + name, master.detach())
        for name, master in self.masters.items():
            for moment, tensor in self.optimizer.state[master].items():
                key, rows = f"{moment}/{name}", local(tensor)
                yield Piece(key, tuple(master.shape), first_row(master), rows) if rows.ndim else _piece(key, tensor)


def _piece(name: str, tensor: Tensor) -> Piece:
    """Returns this rank's rows of a tensor, or all of one that is not sharded."""
    return Piece(name, tuple(tensor.shape), first_row(tensor), local(tensor))
