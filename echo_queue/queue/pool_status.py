"""The living workers summed up by their pools: how many, how fast, how long groups and weights take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from echo_queue.queue.generation_times import GenerationTimes
from echo_queue.queue.types import Heartbeat, WorkerStatus


@dataclass(frozen=True)
class Arrival:
    """Quantiles over workers of the time from the publication of a version until they served it, the last time, in s.

    A quantile is the time of the first worker that at least this share of all workers do not exceed.
    """

    p50_s: float
    p90_s: float
    max_s: float


@dataclass(frozen=True)
class PoolStatus:
    """The living workers of one pool. The pool of workers that name none has an empty name.

    `groups_per_s`, `tokens_per_s`: of all of them together. `generation`: of the groups that each of them finished
    last. `arrival`: null until a worker has served a version that was published in its life. `scoring_s`: the mean time
    of a call of the environment at the worker where it takes longest. `unscored`: samples that wait for it.
    `judge_calls`, `judge_tokens`: what judges have cost since these workers started.
    """

    name: str
    workers: int
    machines: int
    groups_per_s: float
    tokens_per_s: float
    generation: GenerationTimes
    arrival: Arrival | None
    scoring_s: float
    unscored: int
    judge_calls: int
    judge_tokens: int


def pools_of(workers: Iterable[WorkerStatus]) -> tuple[PoolStatus, ...]:
    """Returns the pools of the workers that have a heartbeat, by name."""
    beats: dict[str, list[Heartbeat]] = {}
    for worker in workers:
        if worker.heartbeat is not None:
            beats.setdefault(worker.heartbeat.pool, []).append(worker.heartbeat)
    return tuple(_pool(name, beats[name]) for name in sorted(beats))


def _pool(name: str, beats: Sequence[Heartbeat]) -> PoolStatus:
    return PoolStatus(
        name,
        workers=len(beats),
        machines=len({beat.machine for beat in beats}),
        groups_per_s=sum(beat.groups_per_s for beat in beats),
        tokens_per_s=sum(beat.tokens_per_s for beat in beats),
        generation=GenerationTimes.together(beat.generation for beat in beats),
        arrival=arrival_of(beats),
        scoring_s=max(beat.scoring_s for beat in beats),
        unscored=sum(beat.unscored for beat in beats),
        judge_calls=sum(beat.judge_calls for beat in beats),
        judge_tokens=sum(beat.judge_tokens for beat in beats),
    )


def arrival_of(beats: Iterable[Heartbeat]) -> Arrival | None:
    """Returns the quantiles of these workers; None if no weights arrived at any of them yet."""
    times_s = sorted(beat.arrived_ms / 1000 for beat in beats if beat.arrived_ms >= 0)
    if not times_s:
        return None
    p50_s, p90_s = (times_s[-(-share * len(times_s) // 10) - 1] for share in (5, 9))
    return Arrival(p50_s, p90_s, times_s[-1])
