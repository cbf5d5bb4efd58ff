"""Ours and the baselines: ways to take one step on the same batch, with the same model, optimizer and precision."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.learner.work import Shape, random_model
from echo_queue.config import Learner
from echo_queue.config.model import Lora
from echo_queue.records import Group
from learner.batch.packing import Packing
from learner.batch.prepare import prepare
from learner.model.activations import checkpoint_layers
from learner.model.attention.rectangles import Rectangles
from learner.model.head import Head, token_scores
from learner.model.loading import prepare as for_scorer
from learner.model.lora.adapters import Adapters, base_name
from learner.model.lora.frozen_base import FrozenBase, Origin
from learner.model.policy import Policy
from learner.model.scorer import LOGITS_AT_ONCE
from learner.model.sharding import local, shard
from learner.ranks.team import Team
from learner.update import learn

LogProbs = Callable[[Tensor, Tensor, Tensor], Tensor]
"""hidden [K, H], weight [V, H], targets [K] → the targets' log-probabilities, [K]"""
OURS, RECTANGLES, PLAIN, TRL = "ours", "rectangles", "transformers", "transformers, TRL's head"
WAYS = (OURS, RECTANGLES, PLAIN, TRL)
TRL_CHUNK = 32_768
"""Columns of the vocabulary that TRL's head computes at a time."""


class Trainer(Protocol):
    """A way of training one batch."""

    model: PreTrainedModel

    def update(self, number: int) -> None:
        """Takes step `number` on the batch."""


class Ours:
    """The learner's own update; `packing`: the kind of attention, None for the device's own."""

    def __init__(
        self,
        shape: Shape,
        settings: Learner,
        where: torch.device,
        groups: Sequence[Group],
        *,
        team: Team,
        packing: type[Packing] | None = None,
    ) -> None:
        self.model, self._settings, self._groups = for_scorer(random_model(shape, where)), settings, groups
        adapters = Adapters(self.model, Lora(rank=shape.rank)) if shape.rank else None
        self.policy = Policy(self.model, settings, torch.bfloat16, team, adapters=adapters)
        if adapters is not None:
            adapters.initialise(seed=0)
            self.policy.frozen_base = FrozenBase.described(Origin("random"), self._base, adapters, share=team.share)
        self.policy.packing = packing or self.policy.packing

    def _base(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors of the base model to which the adapters belong."""
        named = ((base_name(name), parameter) for name, parameter in self.model.named_parameters())
        return ((name, local(parameter.detach())) for name, parameter in named if name)

    def update(self, number: int) -> None:
        learn(self.policy, self._groups, number, self._settings, 1.0)


class Plain(torch.nn.Module):
    """transformers' forward pass with `sdpa` over prompt + completion of every sample, and −A · log π of the drawn
    tokens, which are all that the head sees."""

    def __init__(
        self,
        shape: Shape,
        settings: Learner,
        where: torch.device,
        groups: Sequence[Group],
        logprobs: LogProbs | None = None,
    ) -> None:
        super().__init__()
        self.model, self._settings, self._device = random_model(shape, where), settings, where
        self._logprobs = logprobs or partial(_our_logprobs, logits_at_once=LOGITS_AT_ONCE[where.type])
        self.model.set_attn_implementation("sdpa")
        layers = self.model.base_model.layers
        assert isinstance(layers, torch.nn.ModuleList)
        checkpoint_layers(layers, settings.activation_checkpointing)
        shard(self, layers, torch.bfloat16, where)
        self._optimizer = torch.optim.AdamW(self.parameters(), lr=settings.lr, fused=True)
        update = prepare(groups, settings)
        self._tokens, self._prompt = update.tokens, len(groups[0].prompt)
        samples = [(part.prompt, row) for part in update.groups for row in part.rows]
        self._text = torch.from_numpy(np.stack([np.concatenate([p, row.tokens]) for p, row in samples]).astype(int))
        self._advantages = torch.tensor([row.advantage for _, row in samples])

    def update(self, number: int) -> None:
        rows = max(1, self._settings.micro_tokens // self._text.shape[1])
        for text, advantages in zip(self._text.split(rows), self._advantages.split(rows), strict=True):
            (self(text.to(self._device), advantages.to(self._device)) / self._tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters(), self._settings.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def forward(self, text: Tensor, advantages: Tensor) -> Tensor:
        """text [R, P + T], advantages [R] → the summed loss."""
        hidden = self.model.base_model(text[:, :-1], use_cache=False).last_hidden_state[:, self._prompt - 1 :]
        head, targets = self.model.get_output_embeddings().weight, text[:, self._prompt :]
        logprobs = self._logprobs(hidden.flatten(0, 1), head, targets.flatten())
        return -(logprobs.view(targets.shape) * advantages[:, None]).sum()


def ways(
    shape: Shape,
    settings: Learner,
    where: torch.device,
    groups: Sequence[Group],
    *,
    team: Team,
    named: Sequence[str] | None = None,
) -> dict[str, Callable[[], Trainer]]:
    """Returns all ways by name, or those of `named`: ours first; rectangles where they are another way; the baselines
    on one rank only.

    TRL's head is left out where TRL is not installed. The baselines train all weights.
    """
    found: dict[str, Callable[[], Trainer]] = {OURS: lambda: Ours(shape, settings, where, groups, team=team)}
    if team.size == 1 and where.type == "cuda":
        found[RECTANGLES] = lambda: Ours(shape, settings, where, groups, team=team, packing=Rectangles)
    if team.size == 1 and not shape.rank:
        found[PLAIN] = lambda: Plain(shape, settings, where, groups)
        if _has_trl():
            found[TRL] = lambda: Plain(shape, settings, where, groups, _trl_logprobs)
    return {name: make for name, make in found.items() if named is None or name in named}


def _has_trl() -> bool:
    """Returns whether TRL is here with all that its head needs."""
    with suppress(ImportError):
        import_module("trl.trainer.utils")
        return True
    return False


def _our_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, logits_at_once: int) -> Tensor:
    return token_scores(hidden, Head(weight), targets, 1.0, logits_at_once).logprobs


def _trl_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Computes them by TRL's chunked head (`ChunkedLogProbFunction`, TRL 1.16), with the entropy, as its GRPO does."""
    from trl.kernels import ChunkedLogProbFunction

    settings = (1.0, min(TRL_CHUNK, len(weight)), None, 1.0, ("entropy",))
    logprobs: Tensor = ChunkedLogProbFunction.apply(hidden, weight, None, targets, *settings)[0]
    return logprobs
