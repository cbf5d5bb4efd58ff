"""A worker's heartbeat is stored as sent, and the queue measures from it when weights arrived."""

import time
from dataclasses import replace
from typing import get_args

import pytest

from echo_queue.errors import ServiceError
from echo_queue.queue import Heartbeat, replies
from echo_queue.queue.generation_times import GenerationTimes
from echo_queue.queue.monitor import PAGE
from echo_queue.queue.pool_status import Arrival, pools_of
from echo_queue.queue.types import Departure, WorkerStatus
from echo_queue.records import Published, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness


def beat_of(queue: Clients, name: str = "w1") -> Heartbeat:
    (heartbeat,) = (worker.heartbeat for worker in queue.status().workers if worker.name == name)
    assert heartbeat is not None
    return heartbeat


def test_everything_a_heartbeat_tells_comes_back(queue: Clients) -> None:
    harness = QueueHarness(queue)
    told = Heartbeat(
        "engine", harness.version, "generating", 12.5, 0.25, 7, 0, 34.5, 1 << 40, 3 << 41,
        release="9.9.9", pool="spot", machine="node-7", generation=GenerationTimes.of([2.0, 3.0, 3.1, 900.0]),
        scoring_s=1.5, unscored=12, judge_calls=40, judge_tokens=9_000,
    )  # fmt: skip
    queue.heartbeat("w1", told, every_s=60.0)
    assert beat_of(queue) == told


def test_the_queue_measures_from_publication_to_the_first_heartbeat_that_names_a_version(queue: Clients) -> None:
    harness = QueueHarness(queue)
    version = Version(harness.version.lineage, 5)
    queue.publish(version.lineage, Published(version, "manifest", "digest"))
    published = queue.published()
    assert published and published.ms > 0
    time.sleep(0.05)
    queue.heartbeat("w1", Heartbeat("engine", version, "generating", published_ms=published.ms), every_s=60.0)
    arrived_ms = beat_of(queue).arrived_ms
    assert 50 <= arrived_ms < 5_000
    time.sleep(0.05)
    queue.heartbeat("w1", Heartbeat("engine", version, "generating"), every_s=60.0)
    assert beat_of(queue).arrived_ms == arrived_ms, "measured once"


def test_a_worker_that_invents_a_time_of_publication_measures_nothing(queue: Clients) -> None:
    harness = QueueHarness(queue)
    for invented in (-5, 1 << 50):
        queue.heartbeat("w1", Heartbeat("engine", harness.version, "idle", published_ms=invented), every_s=60.0)
        assert beat_of(queue).arrived_ms == -1


@pytest.mark.parametrize("word", ["9" * 400, "9" * 5000, "1e308", "inf", "1_0", "\u0661", "0x10", b"\xff"])
@pytest.mark.parametrize(
    "field", ["groups", "store_bytes", "arrived_ms", "tokens_per_s", "pause_ms", "version", "generation"]
)
def test_a_heartbeat_with_a_number_that_is_none_is_unreadable_and_spoils_no_other(
    queue: Clients, field: str, word: str | bytes
) -> None:
    """Its user may write the hash by hand."""
    harness = QueueHarness(queue)
    told = Heartbeat("engine", harness.version, "generating", 12.5, 0.25, 7)
    for name in ("w1", "w2"):
        queue.heartbeat(name, told, every_s=60.0)
    queue.client.hset(queue.keys.worker("w1"), field, word)
    assert (beat_of(queue, "w1").state, beat_of(queue, "w2")) == ("unreadable", told)


def test_all_workers_are_shown_however_many_pages_they_fill(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    beat = replies.heartbeat_words(Heartbeat("engine", harness.version, "idle"))
    pipe = queue.client.pipeline(transaction=False)
    for number in range(2 * PAGE + 1):
        pipe.zadd(queue.keys.workers, {f"w{number}": 0})
        pipe.hset(queue.keys.worker(f"w{number}"), mapping=dict(zip(beat[::2], beat[1::2], strict=True)))
    pipe.execute()
    harness.lease(1, f"w{2 * PAGE}")
    harness.lease(2, "unheard_of")
    workers = {worker.name: worker for worker in queue.status().workers}
    assert len(workers) == 2 * PAGE + 2
    assert all((worker.heartbeat is None) == (name == "unheard_of") for name, worker in workers.items())
    assert {name: worker.held for name, worker in workers.items() if worker.held} == {
        f"w{2 * PAGE}": 1,
        "unheard_of": 2,
    }
    assert workers["unheard_of"].silent_ms == -1


def test_a_worker_that_leaves_says_why_and_is_counted_once(queue: Clients) -> None:
    harness = QueueHarness(queue)
    for why in get_args(Departure):
        queue.heartbeat(why, Heartbeat("engine", harness.version, "idle"), every_s=60.0)
        for _ in range(2):  # the first reply was lost
            queue.leave(why, why)
    counts = queue.status().counts
    assert {name: count for name, count in counts.items() if name.startswith("left_")} == {
        f"left_{why}": 1 for why in get_args(Departure)
    }
    with pytest.raises(ServiceError, match="no reason to leave"):
        queue.leave("w1", "bored")  # type: ignore[arg-type]


def test_pools_sum_up_their_living_workers() -> None:
    def worker(name: str, pool: str, arrived_ms: int, times: list[float]) -> WorkerStatus:
        generation = GenerationTimes.of(times)
        beat = Heartbeat(
            "engine", Version(0, 0), "idle", 10.0, 0.5, pool=pool, machine=name[:2], scoring_s=len(times), unscored=2,
            judge_calls=3, judge_tokens=400,
        )  # fmt: skip
        return WorkerStatus(name, 0, replace(beat, arrived_ms=arrived_ms, generation=generation))

    slow = [worker(f"m{number % 2}-{number}", "slow", 1_000 * number, [8.0] * 10) for number in range(1, 11)]
    first, second = pools_of([*slow, worker("w1", "", -1, []), WorkerStatus("gone", 9_000, None)])
    assert (first.name, first.workers, first.arrival, first.generation.groups) == ("", 1, None, 0)
    assert (second.name, second.workers, second.machines, second.groups_per_s) == ("slow", 10, 2, 5.0)
    assert second.arrival == Arrival(5.0, 9.0, 10.0)
    assert (second.scoring_s, second.unscored) == (10.0, 20)
    assert (second.judge_calls, second.judge_tokens) == (30, 4_000)
    assert second.generation.groups == 100 and second.generation.p50_s == pytest.approx(8.0, rel=0.2)
