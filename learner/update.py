"""An optimizer update on one batch of groups. The terms of the loss are chosen in `learner.losses.objective`.

- The loss is the mean over all tokens of the update that the model drew, however the update is cut into micro-batches
  and shared out among the ranks.
- Each batch gets one optimizer step; the ratio to the behaviour log-probabilities corrects for lag.
- A batch without any difference in reward teaches nothing: the weights and the optimizer stay unchanged.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from echo_queue import config
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.records import Group
from learner.batch.micro_batches import MicroBatch, collate
from learner.batch.plan import Costs, plan
from learner.batch.prepare import Update, prepare
from learner.losses.objective import token_losses
from learner.losses.token_sums import TokenSums
from learner.model.policy import Policy
from learner.model.scorer import Score


@dataclass(frozen=True)
class UpdateResult:
    """The figures of one update. `grad_norm` is the gradient's norm before clipping."""

    sums: TokenSums
    grad_norm: float
    lr: float
    zero_variance_groups: int


def learning_rate(settings: config.Learner, number: int) -> float:
    """Returns the learning rate of the update that makes version `number`.

    It rises along a line to `lr` over `warmup_updates`, and then follows `schedule`: with `constant` it stays; with
    `linear` and `cosine` (arXiv 1608.03983, eq. 5, without restarts) it has fallen to `lr_end_share` of `lr` by update
    `schedule_updates`, or `max_updates` if that is 0, and stays there.
    """
    if number < settings.warmup_updates:
        return settings.lr * number / settings.warmup_updates
    if settings.schedule == "constant":
        return settings.lr
    length = (settings.schedule_updates or settings.max_updates) - settings.warmup_updates
    progress = min(1.0, (number - settings.warmup_updates) / length)
    remaining = 1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return settings.lr * (settings.lr_end_share + (1 - settings.lr_end_share) * remaining)


def learn(
    policy: Policy,
    groups: Sequence[Group],
    number: int,
    settings: config.Learner,
    temperature: float,
    *,
    reference: Score | None = None,
    select: Callable[[Update], Update] | None = None,
    step: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> UpdateResult:
    """Trains version `number`. All ranks of the policy's team call it with the same arguments, and get the same result.

    `select` chooses among the samples once their advantages are known, and only what it returns is trained.
    Each micro-batch, and the optimizer's step, runs within a `step()`. Raises `EchoQueueError`, with nothing changed,
    if the gradient is not finite; `RankLostError` if another rank does not take part.
    """
    team = policy.team
    update = prepare(groups, settings.advantage, settings.zero_variance)
    if select:
        update = select(update)
    lr, norm = learning_rate(settings, number), 0.0
    sums = torch.zeros(TokenSums.TERMS, dtype=torch.float64, device=policy.device)
    if update.tokens:
        shares = plan(update, team.size, settings.micro_tokens, policy.packing, Costs.of(policy.model.config))
        with team.together(f"train update {number}"):
            for pieces in shares[team.rank]:
                with step():
                    batch = collate(pieces, policy.packing).to(policy.device)
                    loss, terms = _loss(policy, batch, settings, temperature, reference)
                    # The ranks' gradients are averaged, and the loss is a sum over all of them.
                    (loss * team.size / update.tokens).backward()
                    sums += terms
            with step():
                team.sum(sums)
                norm = policy.step(lr)
    if not math.isfinite(norm):
        fix = "lower learner.lr or learner.grad_clip; a restart continues from the newest checkpoint"
        raise EchoQueueError(Problem("learner", f"the gradient of update {number} is not finite", fix))
    return UpdateResult(TokenSums(update.tokens, *sums.tolist()), norm, lr, update.zero_variance_groups)


def _loss(
    policy: Policy,
    batch: MicroBatch,
    settings: config.Learner,
    temperature: float,
    reference: Score | None,
) -> tuple[Tensor, Tensor]:
    """Returns the summed loss of a micro-batch, and the sums that it reports, in the order of `TokenSums`.

    Both stay on the device: a figure that is read waits for every kernel before it.
    """
    reference_logprobs = None
    if reference is not None:
        with torch.no_grad():  # first: it may be the policy's own model, which then keeps what its gradient needs
            reference_logprobs = reference(batch, temperature).logprobs
    logprobs, entropy = policy.score(batch, temperature)
    losses, clipped, kl = token_losses(logprobs, batch.behaviour, batch.advantages, reference_logprobs, settings)
    terms = torch.stack([losses, clipped.to(losses.dtype), batch.behaviour - logprobs, kl, entropy])
    return losses.sum(), terms.detach().double().sum(1)
