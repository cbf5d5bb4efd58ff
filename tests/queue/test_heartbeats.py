"""A worker's heartbeat is stored as sent, and the queue measures from it when weights arrived."""

import time

from echo_queue.queue import Heartbeat, replies
from echo_queue.queue.monitor import PAGE
from echo_queue.records import Published, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness


def beat_of(queue: Clients, name: str = "w1") -> Heartbeat:
    (heartbeat,) = (worker.heartbeat for worker in queue.status().workers if worker.name == name)
    assert heartbeat is not None
    return heartbeat


def test_everything_a_heartbeat_tells_comes_back(queue: Clients) -> None:
    harness = QueueHarness(queue)
    told = Heartbeat("engine", harness.version, "generating", 12.5, 0.25, 7, 0, 34.5, 1 << 40, 3 << 41)
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
