"""One optimizer update on one batch of groups: GRPO, and nothing else.

- The loss is the mean over all tokens of the update that the model drew, however it is cut into micro-batches.
- One optimizer step per batch; the ratio to the behaviour log-probabilities corrects for lag.
- A batch without any difference in reward teaches nothing: the weights and the optimizer stay as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo_queue import config
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.records import Group
from learner.batch import MicroBatch, micro_batches, prepare
from learner.losses.clipped import clipped_surrogate
from learner.losses.kl import kl_k3
from learner.losses.token_sums import TokenSums
from learner.model.forward import score
from learner.model.policy import Policy


@dataclass(frozen=True)
class UpdateResult:
    """What one update did. `grad_norm` is before clipping."""

    sums: TokenSums
    grad_norm: float
    lr: float
    zero_variance_groups: int


def learning_rate(settings: config.Learner, number: int) -> float:
    """Of the update that makes version `number`: a linear warm-up, then constant."""
    return settings.lr * min(1.0, number / max(1, settings.warmup_updates))


def learn(
    policy: Policy,
    groups: Sequence[Group],
    number: int,
    settings: config.Learner,
    temperature: float,
    *,
    reference: PreTrainedModel | None = None,
) -> UpdateResult:
    """Makes version `number`. Raises `EchoQueueError` for a gradient that is not finite; nothing has changed then."""
    update = prepare(groups, settings.advantage, settings.zero_variance)
    sums, lr = TokenSums(), learning_rate(settings, number)
    for batch in micro_batches(update, settings.micro_tokens):
        loss, part = _losses(policy.model, batch, settings, temperature, reference)
        (loss / update.tokens).backward()
        policy.collect()
        sums += part
    norm = policy.step(lr) if update.tokens else 0.0
    if not math.isfinite(norm):
        fix = "lower learner.lr or learner.grad_clip; a restart goes on from the newest checkpoint"
        raise EchoQueueError(Problem("learner", f"the gradient of update {number} is not finite", fix))
    return UpdateResult(sums, norm, lr, update.zero_variance_groups)


def _losses(
    model: PreTrainedModel,
    batch: MicroBatch,
    settings: config.Learner,
    temperature: float,
    reference: PreTrainedModel | None,
) -> tuple[Tensor, TokenSums]:
    """Summed loss of a micro-batch, and its sums for the report."""
    logprobs, entropy = score(model, batch, temperature)
    losses, cut = clipped_surrogate(logprobs, batch.behaviour, batch.advantages, settings.clip_low, settings.clip_high)
    kl = torch.zeros_like(losses)
    if reference is not None:
        with torch.no_grad():
            anchor = score(reference, batch, temperature).logprobs
        kl = kl_k3(logprobs, anchor)
        losses = losses + settings.kl * kl
    report = torch.stack([losses, cut.float(), batch.behaviour - logprobs, kl, entropy]).detach().double().sum(1)
    return losses.sum(), TokenSums(len(losses), *report.tolist())
