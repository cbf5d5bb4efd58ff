"""The record that an update leaves in `metrics.jsonl` and in the log."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from echo_queue.config import Config
from echo_queue.queue import Status
from echo_queue.queue.pool_status import Arrival, arrival_of, pools_of
from echo_queue.records import Group, Version
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.metrics import SETS, UpdateMetrics
from learner.batch.prepare import are_equal, compared_rewards
from learner.ranks.order import Order
from learner.update import UpdateResult
from learner.update.old_logprobs import OldFigures

log = logging.getLogger(__name__)

DEPTHS = ("backlog", "tasks", "retry", "ready", "replay", "trained", "dead")
SENT_BACK = ("late", "abandoned", "cancelled")


class Seconds(NamedTuple):
    """Durations around one update, in order: saving the results of the one before, waiting for groups, training."""

    save: float
    wait: float
    train: float


def describe(
    order: Order,
    result: UpdateResult,
    seconds: Seconds,
    *,
    alarm: str,
    window: float,
    t_bcast_s: float,
    stored: Mapping[str, int],
    kappa: int,
    status: Status,
    config: Config,
) -> UpdateMetrics:
    """Describes the update that `order` made, and logs one line about it. Groups that it reused count only as such.

    `stored`: weight bytes stored so far, by kind ("anchor", "delta"). `alarm`: the guard's, if any. `t_bcast_s`:
    T_bcast, smoothed. `config`: that of the run, whose reward functions and mixture it is.
    """
    version, groups = order.version, order.groups
    samples = [sample for group in groups for sample in group.samples]
    rewards = [sample.reward for sample in samples]
    tokens = sum(len(sample.tokens) for sample in samples)
    lags, reused_lags = (_lags(version, trained) for trained in (groups, order.reused))
    sums, ratios, old = result.sums, result.ratios, result.old or OldFigures()
    heartbeats = [worker.heartbeat for worker in status.workers if worker.heartbeat is not None]
    arrival = arrival_of(heartbeats) or Arrival(0.0, 0.0, 0.0)
    metrics = UpdateMetrics(
        time_s=time.time(),
        lineage=version.lineage,
        version=version.number,
        reward_mean=fmean(rewards),
        reward_std=pstdev(rewards),
        groups=len(groups),
        samples=len(samples),
        tokens=tokens,
        lags=lags,
        reused_lags=reused_lags,
        zero_variance_groups=result.zero_variance_groups,
        loss=sums.mean(sums.loss),
        grad_norm=result.grad_norm,
        clip_fraction=sums.mean(sums.clipped),
        kl_behaviour=sums.mean(sums.kl_behaviour),
        entropy=sums.mean(sums.entropy),
        lr=result.lr,
        wait_s=seconds.wait,
        train_s=seconds.train,
        save_s=seconds.save,
        window=window,
        depths={name: getattr(status, name) for name in DEPTHS},
        sent_back=sum(status.counts.get(cause, 0) for cause in SENT_BACK),
        trained_ids=tuple(group.task for group in groups),
        mixed_groups=sum(group.oldest < group.newest for group in groups),
        t_bcast_s=t_bcast_s,
        token_lag=version.number - 1 - sum(sample.version_sum for sample in samples) / tokens,
        store_bytes=sum(heartbeat.store_bytes for heartbeat in heartbeats),
        peer_bytes=sum(heartbeat.peer_bytes for heartbeat in heartbeats),
        anchor_bytes=stored["anchor"],
        delta_bytes=stored["delta"],
        arrived_s=arrival.max_s,
        arrived_p50_s=arrival.p50_s,
        arrived_p90_s=arrival.p90_s,
        generation_s=_generation_s(status),
        kappa=kappa,
        pause_s=max([0.0, *(heartbeat.pause_ms / 1000 for heartbeat in heartbeats)]),
        kl_reference=sums.mean(sums.kl_reference),
        filtered_fraction=sums.mean(sums.filtered),
        ess_tokens=ratios.ess_tokens,
        ess_samples=ratios.ess_samples,
        second_moment=ratios.second_moment,
        ratio_quantiles={str(lag): quantiles for lag, quantiles in ratios.by_lag},
        length_mean=tokens / len(samples),
        length_max=max(len(sample.tokens) for sample in samples),
        truncated_fraction=fmean(sample.finish == "length" for sample in samples),
        alarm=alarm,
        steps=result.steps,
        old_exact_fraction=old.exact_fraction,
        kl_engine=old.kl_engine,
        workers=len(heartbeats),
        sets=dict(Counter(group.set for group in groups).most_common(SETS)),
        rewards=_rewards(groups, _functions(config)),
        components=_components(groups, config),
    )
    log.info(
        "update %d: reward %.3f, lags %s (tokens %.2f), waited %.2f s, trained %.2f s",
        version.number,
        metrics.reward_mean,
        metrics.lags,
        metrics.token_lag,
        seconds.wait,
        seconds.train,
    )
    if result.old and old.exact_fraction < 1:
        unknown = 100 * (1 - old.exact_fraction)
        why = "update %d: an earlier learner made the versions of %.1f %% of the tokens, whose π_old is taken to be μ"
        log.info(why, version.number, unknown)
    if alarm:
        log.warning("update %d: %s; see docs/learning.md#the-guard", version.number, alarm)
    return metrics


def _functions(config: Config) -> list[str]:
    """Returns the names of the reward functions of all that is trained."""
    named = (name for environment in config.trained_environments for name in environment.reward_functions)
    return list(dict.fromkeys(named))


def _components(groups: Sequence[Group], config: Config) -> dict[str, ComponentFigures]:
    """Returns the figures of each component of the mixture that has a group among these."""
    found: dict[str, list[Group]] = {component.name: [] for component in config.mixture}
    for group in groups:
        if component := config.component_of(group.set):
            found[component.name].append(group)
    return {name: _component(its, config) for name, its in found.items() if its}


def _component(groups: Sequence[Group], config: Config) -> ComponentFigures:
    samples = [sample for group in groups for sample in group.samples]
    tokens = sum(len(sample.tokens) for sample in samples)
    return ComponentFigures(
        groups=len(groups),
        samples=len(samples),
        tokens=tokens,
        reward_mean=fmean(sample.reward for sample in samples),
        length_mean=tokens / len(samples),
        truncated_fraction=fmean(sample.finish == "length" for sample in samples),
        zero_variance_groups=sum(are_equal(compared_rewards(group, config.learner)) for group in groups),
        rewards=_rewards(groups, config.environment_of(groups[0].set).reward_functions),
    )


def _rewards(groups: Sequence[Group], functions: Iterable[str]) -> dict[str, float]:
    """Returns the mean of what each function gave, without one that no sample has: its groups are older than it."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for group in groups:
        for place, name in enumerate(group.rewards):
            if name in found:
                found[name] += [sample.parts[place] for sample in group.samples]
    return {name: fmean(parts) for name, parts in found.items() if parts}


def _generation_s(status: Status) -> dict[str, tuple[float, ...]]:
    """Returns the quantiles of groups' times by pool, for pools in which a group was accepted."""
    found: dict[str, tuple[float, ...]] = {}
    for pool in pools_of(status.workers):
        match pool.generation.p50_s, pool.generation.p90_s, pool.generation.p99_s:
            case (float(p50_s), float(p90_s), float(p99_s)):
                found[pool.name] = (round(p50_s, 3), round(p90_s, 3), round(p99_s, 3))
    return found


def _lags(version: Version, groups: Sequence[Group]) -> dict[str, int]:
    """Returns how many of the groups that this version trained have each lag."""
    lags = Counter(version.number - 1 - group.oldest for group in groups)
    return {str(lag): count for lag, count in sorted(lags.items())}
