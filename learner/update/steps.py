"""An optimizer update on one batch of groups. The terms of the loss are chosen in `learner.losses.objective`.

- The loss is a sum over all tokens of a mini-batch that the model drew, weighed and divided as `learner.normalise`
  says, however the mini-batch is cut into micro-batches and shared out among the ranks.
- Each mini-batch gets one optimizer step: by default the whole batch is one. `learner.correction` corrects for lag, and
  for the steps that an update has taken already.
- A batch without any difference in reward teaches nothing: the weights and the optimizer stay unchanged.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch

from echo_queue import config
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.records import Group
from learner.batch.mini_batches import mini_batches
from learner.batch.prepare import Update, prepare
from learner.diagnostics.guard import step_scale
from learner.diagnostics.ratios import Floats, RatioFigures, TokenRatios, ratio_figures
from learner.losses.token_sums import TokenSums
from learner.model.past_versions import PastVersions
from learner.model.policy import Policy
from learner.model.scorer import Score
from learner.update.old_logprobs import OldFigures, with_old_logprobs
from learner.update.passes import Passes


@dataclass(frozen=True)
class UpdateResult:
    """The figures of one update: sums and ratios over the tokens of all of its steps, each token as it was before its
    step; the means over the steps of the gradient's norm before clipping and of the rate."""

    sums: TokenSums
    grad_norm: float
    lr: float
    zero_variance_groups: int
    ratios: RatioFigures
    steps: int
    old: OldFigures | None = None
    """Those of the old log-probabilities, if the loss needs them"""


class Step(NamedTuple):
    """The figures of one optimizer step. `sums` [T] are in the order of `TokenSums`."""

    sums: Floats
    ratios: TokenRatios
    grad_norm: float
    lr: float


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
    past: PastVersions | None = None,
    select: Callable[[Update], Update] | None = None,
    step: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> UpdateResult:
    """Trains version `number`. All ranks of the policy's team call it with the same arguments, and get the same result.

    `past`: the policy's, which `settings.needs_old` asks for; it gets to know this version.
    `select` chooses among the samples once their advantages are known, and only what it returns is trained.
    Each micro-batch, and each of the optimizer's steps, runs within a `step()`. Raises `EchoQueueError` before a step
    whose gradient is not finite; `RankLostError` if another rank does not take part.
    """
    update, lr = prepare(groups, settings), learning_rate(settings, number)
    if select:
        update = select(update)
    passes_of = partial(Passes, policy, settings=settings, number=number, temperature=temperature, reference=reference)
    old = None
    if past is not None:
        in_step = settings.mini_batches == 1
        with policy.team.together(f"score update {number} by older versions"), policy.products():
            update, old = with_old_logprobs(update, past, passes_of, step, present=number - 1, in_step=in_step)
        past.begin(number)
    parts = [passes_of(part) for part in mini_batches(update, settings)]
    if not parts:
        return UpdateResult(TokenSums(), 0.0, lr, update.zero_variance_groups, RatioFigures(), steps=0, old=old)
    with policy.team.together(f"train update {number}"), policy.products():
        if settings.needs_proximal:
            for passes in parts[1:]:
                passes.keep_proximal(step)
        keep = past.recording if past is not None else nullcontext
        made = [_step(policy, passes, settings, lr, step=step, keep=keep) for passes in parts]
    return UpdateResult(
        TokenSums(update.tokens, *np.sum([one.sums for one in made], axis=0).tolist()),
        fmean(one.grad_norm for one in made),
        fmean(one.lr for one in made),
        update.zero_variance_groups,
        ratio_figures([one.ratios for one in made]),
        len(made),
        old,
    )


def _step(
    policy: Policy,
    passes: Passes,
    settings: config.Learner,
    lr: float,
    *,
    step: Callable[[], AbstractContextManager[object]],
    keep: Callable[[], AbstractContextManager[object]],
) -> Step:
    """Takes one optimizer step on the mini-batch of `passes`, within `keep()`."""
    team = policy.team
    limit = passes.second_moment_limit(step) if settings.needs_second_moment else math.inf
    sums, found = torch.zeros(TokenSums.TERMS, dtype=torch.float64, device=policy.device), []
    for number, (pieces, proximal) in enumerate(zip(passes.own, passes.proximal, strict=True), 1):
        with step():
            policy.expect_backward(last=number == len(passes.own))
            loss, terms, log_ratios = passes.loss(pieces, proximal, limit)
            # The ranks' gradients are averaged, and the loss is a sum over all of them.
            (loss * team.size / passes.divisor).backward()
            sums += terms
            found.append(log_ratios)
    with step():
        figures = passes.gathered(found, sums)
        # The only wait for the device: all that is reported is read at once.
        values = torch.cat([figures, policy.clip_gradient().double().reshape(1)]).cpu().numpy()
        norm = float(values[-1])
        if not math.isfinite(norm):
            fix = "lower learner.lr or learner.grad_clip; a restart continues from the newest checkpoint"
            raise EchoQueueError(Problem("learner", f"the gradient of update {passes.number} is not finite", fix))
        ratios = passes.ratios(values[TokenSums.TERMS : -1])
        lr *= step_scale(ratio_figures([ratios])) if settings.guard == "act" else 1
        with keep():
            policy.step(lr)
    return Step(values[: TokenSums.TERMS], ratios, norm, lr)
