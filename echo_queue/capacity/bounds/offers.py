"""What one machine of a pool gives and costs, for a bound, a publication period and a way of the weights."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from echo_queue.capacity.bounds.dissemination import Dissemination
from echo_queue.capacity.bounds.lengths import Lengths
from echo_queue.capacity.bounds.utilisation import Path, window_groups
from echo_queue.capacity.fleet_file import Engine, Fleet
from echo_queue.capacity.inputs import Assumed, Measured

HOUR_S = 3_600.0
REACH = 1.5
"""A rate that was found at another length counts up to this factor beyond the lengths of the file."""


class PlannedOffer(NamedTuple):
    """A machine of a pool. Supply is in units of what the learner consumes (`echo_queue.capacity.bounds.utilisation`).

    `usd_per_hour`: for each machine, with what it reads from the store. `entry_usd_per_hour`: once for the pool, if any
    machine of it is used.
    """

    name: str
    usd_per_hour: float
    entry_usd_per_hour: float
    supply: float
    workers: int
    limit: int
    broadcast_s: float
    path: Path


class Generation(NamedTuple):
    """How fast one GPU generates: groups in a second, and seconds of a group (mean, tail) and of a batch's slowest.

    `token_s`: seconds of a token of one sample.
    """

    groups_per_s: float
    token_s: float
    mean_s: float
    tail_s: float
    batch_s: float


def lengths_of(fleet: Fleet) -> Lengths:
    """Returns the lengths of the fleet's samples."""
    found = fleet.lengths
    return Lengths(found.mean_tokens.value, found.spread.value, found.most_tokens)


def rate_at(rates: Mapping[int, Measured | Assumed], length: float) -> float | None:
    """Returns the tokens per second at this mean length, between given lengths by their logarithms.

    It is None if the length is further than `REACH` from all that are given.
    """
    given = sorted(rates)
    if length <= given[0]:
        return rates[given[0]].value if length * REACH >= given[0] else None
    for low, high in pairwise(given):
        if length <= high:
            place = math.log(length / low) / math.log(high / low)
            return math.exp((1 - place) * math.log(rates[low].value) + place * math.log(rates[high].value))
    return rates[given[-1]].value if length <= given[-1] * REACH else None


def generation(fleet: Fleet, engine: Engine) -> Generation:
    """Returns the rates of one GPU, which always has `samples_at_once` samples in flight.

    A group is done with its longest sample, and a batch with the longest of all. A GPU with fewer samples gives each of
    them more, so the times are upper bounds when the queue runs dry.
    """
    lengths, run = lengths_of(fleet), fleet.run
    rate = rate_at(engine.tokens_per_s, lengths.mean_tokens)
    if rate is None:
        raise ValueError(f"no rate near {lengths.mean_tokens} tokens, which echo_queue.capacity.loading checks")
    token_s = engine.samples_at_once / rate
    return Generation(
        groups_per_s=rate / (run.group_size * lengths.mean_tokens),
        token_s=token_s,
        mean_s=lengths.mean_of_longest(run.group_size) * token_s,
        tail_s=lengths.tail_of_longest(run.group_size) * token_s,
        batch_s=lengths.mean_of_longest(run.group_size * run.groups_per_update) * token_s,
    )


def lost_s(mean_s: float, progress_s: float | None) -> float:
    """Returns the seconds of a machine's work that an interruption without notice loses.

    The group goes on from its partial rollout, which is half of `rollout.progress_s` old; without partial rollouts half
    of the group is lost.
    """
    return min(progress_s or math.inf, mean_s) / 2


def useful_share(interruptions_per_hour: float, boot_s: float, lost_work_s: float) -> float:
    """Returns the share of paid time whose work counts: 1 / (1 + λ · (boot + lost)), λ per second of work that counts.

    A successor is ordered at once, and paid for while it boots. Where none can be had at once there is less supply, but
    nothing is paid for it.
    """
    return 1 / (1 + interruptions_per_hour / HOUR_S * (boot_s + lost_work_s))


def path_of(fleet: Fleet, one: Generation, broadcast_s: float, s: int) -> Path:
    """Returns the way from an update to its groups. At S = 0 the learner waits for the slowest group of the batch."""
    lead_s = broadcast_s + one.mean_s / 2
    if s == 0:
        return Path(broadcast_s + one.batch_s, lead_s)
    samples = fleet.run.group_size * window_groups(s, fleet.run.groups_per_update)
    ways_s = tuple(broadcast_s + one.token_s * tokens for tokens in lengths_of(fleet).likely_longest(samples))
    return Path(sum(ways_s) / len(ways_s), lead_s, ways_s)


def offer(fleet: Fleet, name: str, way: Dissemination, *, s: int, kappa: int) -> PlannedOffer:
    """Returns what a machine of a pool with a known price gives and costs.

    Each worker of a machine fetches for itself. The bytes that it pays for are those of a learner that never waits.
    """
    pool = fleet.pools[name]
    assert pool.price is not None, name
    one, learner = generation(fleet, pool), fleet.learner
    share = useful_share(pool.interruptions_per_hour.value, pool.boot_s.value, lost_s(one.mean_s, fleet.run.progress_s))
    accepted = one.groups_per_s * fleet.run.accepted.value * share
    broadcast_s = way.broadcast_s(min(learner.link_gbit.value, pool.link_gbit.value / pool.gpus))
    per_gb = pool.reading.usd_per_gb if pool.reading else 0.0
    read_usd_per_hour = per_gb * way.bytes / 1e9 * HOUR_S / (kappa * learner.t_train_s.value)
    return PlannedOffer(
        name,
        usd_per_hour=pool.price.usd_per_hour + (0.0 if way.peers else pool.gpus * read_usd_per_hour),
        entry_usd_per_hour=read_usd_per_hour if way.peers else 0.0,
        supply=pool.gpus * accepted * learner.t_train_s.value / fleet.run.groups_per_update,
        workers=pool.gpus,
        limit=pool.max_machines,
        broadcast_s=broadcast_s,
        path=path_of(fleet, one, broadcast_s, s),
    )
