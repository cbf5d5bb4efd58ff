"""The figures of the workers, summed up by their pools, and of the fleet's controller."""

from collections import Counter
from collections.abc import Callable, Iterator

from echo_queue.queue import Heartbeat
from echo_queue.queue.pool_status import PoolStatus
from echo_queue.reporting.figures.bounds import OTHER
from echo_queue.reporting.figures.figure import Figure, Reading, Subject, Values, one
from echo_queue.reporting.figures.queue_figures import COMPLAINED, DEPARTED

HEARTBEATS, STATUS_AND_BEATS = "Heartbeats", "The queue's status and heartbeats"
STATES = ("starting", "fetching", "generating", "scoring", "idle", "quarantined", "unreadable")
"""What workers say that they do; any other word counts as `OTHER`."""


def _beats(reading: Reading) -> Iterator[Heartbeat]:
    return (worker.heartbeat for worker in reading.status.workers if worker.heartbeat)


def _workers(reading: Reading) -> Values:
    found = Counter((beat.pool, beat.state if beat.state in STATES else OTHER) for beat in _beats(reading))
    return {(pool.name, state): found[pool.name, state] for pool in reading.pools for state in (*STATES, OTHER)}


def _of_pools(value: Callable[[PoolStatus], float]) -> Callable[[Reading], Values]:
    return lambda reading: {(pool.name,): value(pool) for pool in reading.pools}


def _generation(reading: Reading) -> Values:
    return {
        (pool.name, percentile): time_s
        for pool in reading.pools
        for percentile, share in (("50", 0.5), ("90", 0.9), ("99", 0.99))
        if (time_s := pool.generation.quantile_s(share)) is not None
    }


def _arrival(reading: Reading) -> Values:
    return {
        (pool.name, percentile): time_s
        for pool in reading.pools
        if (found := pool.arrival)
        for percentile, time_s in (("50", found.p50_s), ("90", found.p90_s), ("100", found.max_s))
    }


def _read_bytes(reading: Reading) -> Values:
    found = Counter[tuple[str, ...]]({(pool.name, source): 0 for pool in reading.pools for source in ("store", "peer")})
    for beat in _beats(reading):
        found[beat.pool, "store"] += beat.store_bytes
        found[beat.pool, "peer"] += beat.peer_bytes
    return found


WORKERS = Subject(
    "Workers",
    (
        Figure(
            "echo_queue_workers",
            "gauge",
            "Living workers by pool and by what they do; workers without a pool have an empty one, and a word that no "
            "worker of ours says is `other`.",
            HEARTBEATS,
            "Most are `generating`.",
            "`idle`: the learner is the slower one, or the bound holds admission back; `quarantined`: the engine broke "
            "while it took a version; `unreadable`: a worker of another release.",
            _workers,
            ("pool", "state"),
        ),
        Figure(
            "echo_queue_silent_workers",
            "gauge",
            "Workers that were heard of lately, or hold tasks, and whose heartbeat has run out.",
            STATUS_AND_BEATS,
            "0, but for an hour after a machine was lost",
            "What they hold comes back after `queue.lease_s`; see whether their machines live.",
            lambda reading: one(sum(worker.heartbeat is None for worker in reading.status.workers)),
        ),
        Figure(
            "echo_queue_suspended_workers",
            "gauge",
            "Workers that the learner lets lease nothing, because of the bad groups that they sent.",
            STATUS_AND_BEATS,
            "0",
            "Mend or replace the machine, then `echo-queue reinstate`.",
            lambda reading: one(sum(bool(worker.suspended) for worker in reading.status.workers)),
        ),
        Figure(
            "echo_queue_machines",
            "gauge",
            "Machines with a living worker, by pool.",
            HEARTBEATS,
            "as many as are rented",
            "See the pool's cloud, or `echo-queue fleet`.",
            _of_pools(lambda pool: pool.machines),
            ("pool",),
        ),
        Figure(
            "echo_queue_worker_departures_total",
            "counter",
            "Workers that left, by what they said; one that was killed leaves without a word.",
            "The queue's counters (`tallies`)",
            "`error` is 0.",
            "`preempted`: the cloud takes machines back; `error`: read the worker's log.",
            DEPARTED,
            ("cause",),
        ),
        Figure(
            "echo_queue_generated_tokens_per_second",
            "gauge",
            "Tokens that the living workers of the pool generate in a second.",
            HEARTBEATS,
            "steady",
            "Compare the pools' workers in `echo-queue status`.",
            _of_pools(lambda pool: pool.tokens_per_s),
            ("pool",),
        ),
        Figure(
            "echo_queue_generated_groups_per_second",
            "gauge",
            "Groups that the living workers of the pool complete in a second, over the last ten.",
            HEARTBEATS,
            "all pools together as many as the learner trains",
            "Fewer: rent machines; 0 is usual where a group takes minutes.",
            _of_pools(lambda pool: pool.groups_per_s),
            ("pool",),
        ),
        Figure(
            "echo_queue_group_generation_seconds",
            "gauge",
            "Time from lease to acceptance of the groups that each worker finished last: what 50, 90 and 99 of 100 do "
            "not exceed.",
            HEARTBEATS,
            "The 99th stays below what S allows.",
            "Long tails make groups late: see [tuning](tuning.md).",
            _generation,
            ("pool", "percentile"),
        ),
        Figure(
            "echo_queue_weight_arrival_seconds",
            "gauge",
            "Time from the publication of a version until a worker served it: of the median worker, of the one that 90 "
            "of 100 are no slower than, and of the slowest.",
            HEARTBEATS,
            "below the time of κ updates",
            "See [who feeds whom](operations.md#who-feeds-whom-with-weights-and-how-long-do-they-take).",
            _arrival,
            ("pool", "percentile"),
        ),
        Figure(
            "echo_queue_weight_read_bytes",
            "gauge",
            "Bytes of weights that the living workers have read since they started, from the store and from peers.",
            HEARTBEATS,
            "Most come from peers where there are several workers in a region.",
            "See `weights.transport` and `weights.region`.",
            _read_bytes,
            ("pool", "source"),
        ),
        Figure(
            "echo_queue_peer_reports_total",
            "counter",
            "Reports of a worker about another one from which it fetched weights, by complaint.",
            "The queue's counters (`tallies`)",
            "few",
            "`bad`: a machine passes on wrong bytes; `unreachable`: a firewall; `dry`: a worker is too slow.",
            COMPLAINED,
            ("complaint",),
        ),
        Figure(
            "echo_queue_scoring_seconds",
            "gauge",
            "Mean time of the last calls of the environment, at the worker of the pool where it takes longest.",
            HEARTBEATS,
            "below the time of generation",
            "See [environments](environments.md): more processes, or rewards that wait side by side.",
            _of_pools(lambda pool: pool.scoring_s),
            ("pool",),
        ),
        Figure(
            "echo_queue_unscored_samples",
            "gauge",
            "Samples that have ended and wait for the environment, or are with it.",
            HEARTBEATS,
            "It does not grow.",
            "As for `echo_queue_scoring_seconds`.",
            _of_pools(lambda pool: pool.unscored),
            ("pool",),
        ),
        Figure(
            "echo_queue_judge_tokens",
            "gauge",
            "Tokens that judges' servers have counted for the living workers since they started.",
            HEARTBEATS,
            "by your budget",
            "Ask the judge less often ([environments](environments.md#a-judge)).",
            _of_pools(lambda pool: pool.judge_tokens),
            ("pool",),
        ),
    ),
)

FLEET = Subject(
    "The fleet",
    (
        Figure(
            "echo_queue_fleet_led",
            "gauge",
            "Whether a controller leads the fleet now.",
            "The fleet's state in Redis",
            "1 where `echo-queue fleet --act` runs, else 0",
            "Start the controller again; another one takes over by itself.",
            lambda reading: one(reading.fleet.leads_ms > 0),
        ),
        Figure(
            "echo_queue_fleet_paused",
            "gauge",
            "Whether somebody has paused the controller.",
            "The fleet's state in Redis",
            "0",
            "`echo-queue fleet CONFIG --resume`, once it is to act again.",
            lambda reading: one(reading.fleet.paused),
        ),
        Figure(
            "echo_queue_machines_wanted",
            "gauge",
            "Machines of the pool that the controller wants.",
            "The fleet's state in Redis",
            "as many as there are",
            "The cloud has none, or they do not start: see `echo-queue fleet CONFIG`.",
            lambda reading: {(pool,): count for pool, count in reading.fleet.wanted.items()},
            ("pool",),
        ),
    ),
)
