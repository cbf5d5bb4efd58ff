"""Server time of signs of life, for `benchmarks.queue`: workers' heartbeats, and the sweep by which a learner is heard.

Heartbeats with all fields and with those that there were before a controller read them are sent in turns.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from echo_queue.queue import Caller, Heartbeat, replies
from echo_queue.queue.generation_times import RECENT, GenerationTimes
from echo_queue.queue.operator import SWEEP_MAX
from echo_queue.records import Version

if TYPE_CHECKING:
    import redis

FOR_CONTROLLERS = ("pool", "machine", "generation")
"""The fields that controllers of fleets read."""
WORKERS = 32
"""Workers that beat once in a second each."""
TURNS, CALLS = 20, 4 * WORKERS
EXPIRE_MS = 5_000


@dataclass(frozen=True)
class SignsOfLife:
    """Microseconds of the server for a heartbeat, for one without a controller's fields, and for a learner's sweep."""

    heartbeat_us: float
    before_us: float
    sweep_us: float

    @property
    def added_us_per_s(self) -> float:
        """The microseconds of each second that these fields and the learner's sweep take, with `WORKERS` workers."""
        return WORKERS * (self.heartbeat_us - self.before_us) + self.sweep_us


def measure(client: "redis.Redis", run: str) -> SignsOfLife:
    """Returns medians over all turns, of a run that has begun."""
    caller = Caller(client, run)
    words = replies.heartbeat_words(full_heartbeat())
    pairs = zip(words[::2], words[1::2], strict=True)
    before = [word for name, value in pairs if name not in FOR_CONTROLLERS for word in (name, value)]

    def beats(said: Sequence[str | float]) -> Callable[[int], object]:
        return lambda number: caller.call("heartbeat", f"worker-{number % WORKERS}", EXPIRE_MS, *said)

    calls: Mapping[str, Callable[[int], object]] = {
        "heartbeat_us": beats(words),
        "before_us": beats(before),
        "sweep_us": lambda _: caller.call("reclaim", SWEEP_MAX),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            begun_us = served_us(client)
            for number in range(CALLS):
                call(number)
            taken[name].append((served_us(client) - begun_us) / CALLS)
    return SignsOfLife(**{name: round(statistics.median(each), 2) for name, each in taken.items()})


def served_us(client: "redis.Redis") -> int:
    """Returns the microseconds that the server has spent in functions since it began."""
    return int(client.info("commandstats").get("cmdstat_fcall", {}).get("usec", 0))


def full_heartbeat() -> Heartbeat:
    """Returns what a worker says that has made many groups."""
    times = GenerationTimes.of(np.random.default_rng(0).lognormal(4.0, 0.6, RECENT))
    return Heartbeat(
        "vllm 0.11.0",
        Version(1, 1_000),
        "generating",
        tokens_per_s=6_600.0,
        groups_per_s=0.8,
        groups=100_000,
        pause_ms=120.0,
        store_bytes=10**11,
        peer_bytes=10**12,
        release="0.1.0",
        pool="rtx4090-spot",
        machine="rtx4090-spot-19a2b3c4d5e-0",
        generation=times,
    )
