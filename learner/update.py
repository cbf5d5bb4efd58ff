"""An optimizer update on one batch of groups. The terms of the loss are chosen in `learner.losses.objective`.

- The loss is a sum over all tokens of the update that the model drew, weighed and divided as `learner.normalise` says,
  however the update is cut into micro-batches and shared out among the ranks.
- Each batch gets one optimizer step; `learner.correction` corrects for lag.
- A batch without any difference in reward teaches nothing: the weights and the optimizer stay unchanged.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from echo_queue import config
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.records import Group
from learner.batch.plan import Costs, plan
from learner.batch.prepare import Update, normalised, prepare
from learner.diagnostics.guard import step_scale
from learner.diagnostics.ratios import RatioFigures
from learner.losses.token_sums import TokenSums
from learner.model.policy import Policy
from learner.model.scorer import Score
from learner.passes import Passes


@dataclass(frozen=True)
class UpdateResult:
    """The figures of one update. `grad_norm` is the gradient's norm before clipping, `lr` the rate of its step."""

    sums: TokenSums
    grad_norm: float
    lr: float
    zero_variance_groups: int
    ratios: RatioFigures


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
    update, lr = prepare(groups, settings), learning_rate(settings, number)
    if select:
        update = normalised(select(update), settings)
    if not update.tokens:
        return UpdateResult(TokenSums(), 0.0, lr, update.zero_variance_groups, RatioFigures())
    shares = plan(update, team.size, settings.micro_tokens, policy.packing, Costs.of(policy.model.config))
    passes = Passes(policy, shares, settings, version=number - 1, temperature=temperature, reference=reference)
    with team.together(f"train update {number}"):
        limit = passes.second_moment_limit(step) if settings.needs_second_moment else math.inf
        sums, found = torch.zeros(TokenSums.TERMS, dtype=torch.float64, device=policy.device), []
        for pieces in passes.own:
            with step():
                loss, terms, log_ratios = passes.loss(pieces, limit)
                # The ranks' gradients are averaged, and the loss is a sum over all of them.
                (loss * team.size / update.divisor).backward()
                sums += terms
                found.append(log_ratios)
        with step():
            figures = passes.gathered(found, sums)
            # The only wait for the device: all that is reported is read at once.
            values = torch.cat([figures, policy.clip_gradient().double().reshape(1)]).cpu().numpy()
            norm = float(values[-1])
            if math.isfinite(norm):
                ratios = passes.ratio_figures(values[TokenSums.TERMS : -1])
                lr *= step_scale(ratios) if settings.guard == "act" else 1
                policy.step(lr)
    if not math.isfinite(norm):
        fix = "lower learner.lr or learner.grad_clip; a restart continues from the newest checkpoint"
        raise EchoQueueError(Problem("learner", f"the gradient of update {number} is not finite", fix))
    sums_read = TokenSums(update.tokens, *values[: TokenSums.TERMS].tolist())
    return UpdateResult(sums_read, norm, lr, update.zero_variance_groups, ratios)
