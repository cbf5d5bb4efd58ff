"""An optimizer update on one batch of groups. The terms of the loss are chosen in `learner.losses.objective`.

- The loss is the mean over all tokens of the update that the model drew, however the update is cut into micro-batches.
- Each batch gets one optimizer step; the ratio to the behaviour log-probabilities corrects for lag.
- A batch without any difference in reward teaches nothing: the weights and the optimizer stay unchanged.
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
from learner.losses.objective import token_losses
from learner.losses.token_sums import TokenSums
from learner.micro_batches import MicroBatch, micro_batches, prepare
from learner.model.forward import score
from learner.model.policy import Policy


@dataclass(frozen=True)
class UpdateResult:
    """The figures of one update. `grad_norm` is the gradient's norm before clipping."""

    sums: TokenSums
    grad_norm: float
    lr: float
    zero_variance_groups: int


def learning_rate(settings: config.Learner, number: int) -> float:
    """Returns the learning rate of the update that makes version `number`: a linear warm-up, then constant."""
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
    """Trains version `number`. Raises `EchoQueueError`, with nothing changed, if the gradient is not finite."""
    update = prepare(groups, settings.advantage, settings.zero_variance)
    sums, lr = TokenSums(), learning_rate(settings, number)
    for batch in micro_batches(update, settings.micro_tokens):
        loss, batch_sums = _loss(policy.model, batch, settings, temperature, reference)
        (loss / update.tokens).backward()
        policy.collect()
        sums += batch_sums
    norm = policy.step(lr) if update.tokens else 0.0
    if not math.isfinite(norm):
        fix = "lower learner.lr or learner.grad_clip; a restart continues from the newest checkpoint"
        raise EchoQueueError(Problem("learner", f"the gradient of update {number} is not finite", fix))
    return UpdateResult(sums, norm, lr, update.zero_variance_groups)


def _loss(
    model: PreTrainedModel,
    batch: MicroBatch,
    settings: config.Learner,
    temperature: float,
    reference: PreTrainedModel | None,
) -> tuple[Tensor, TokenSums]:
    """Returns the summed loss of a micro-batch, and the sums that it reports."""
    logprobs, entropy = score(model, batch, temperature)
    reference_logprobs = None
    if reference is not None:
        with torch.no_grad():
            reference_logprobs = score(reference, batch, temperature).logprobs
    losses, clipped, kl = token_losses(logprobs, batch.behaviour, batch.advantages, reference_logprobs, settings)
    report = torch.stack([losses, clipped.float(), batch.behaviour - logprobs, kl, entropy]).detach().double().sum(1)
    return losses.sum(), TokenSums(len(losses), *report.tolist())
