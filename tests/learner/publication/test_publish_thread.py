import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from echo_queue.errors import DeadlineError
from echo_queue.queue import Heartbeat, RunRules, Status, WorkerStatus
from echo_queue.records import Version
from echo_queue.weights.layout import Share
from learner.publication.publish_thread import Publish, PublishThread, Snapshot, publication_period

SHARE = Share.whole({"weight": torch.ones(3)}, "float32", 1 << 20)
STATUS = Status(
    learner=Version(1, 0), published=None, rules=RunRules(s=1, batch=1), window=1.0, finished=False, submitted=0,
    backlog=0, tasks=0, retry=0, in_flight=0, ready=0, drained=0, replay=0, uncommitted=0, trained=0, dead=0,
    learner_silent_ms=0, counts={}, workers=(),
)  # fmt: skip


def serving(*versions: int | None) -> Status:
    """A status in which workers serve these versions; None has gone silent."""
    beats = (None if number is None else Heartbeat("engine", Version(1, number), "generating") for number in versions)
    workers = tuple(WorkerStatus(f"w{n}", 0, heartbeat) for n, heartbeat in enumerate(beats))
    return replace(STATUS, workers=workers)


@pytest.mark.parametrize(
    ("t_bcast_s", "t_train_s", "s", "kappa"),
    [(0.0, 1.0, 4, 1), (0.9, 1.0, 4, 1), (1.1, 1.0, 4, 2), (3.5, 1.0, 4, 4), (99.0, 1.0, 4, 5), (99.0, 1.0, 0, 1)],
)
def test_kappa_is_the_smallest_that_dissemination_sustains(
    t_bcast_s: float, t_train_s: float, s: int, kappa: int
) -> None:
    assert publication_period(t_bcast_s, t_train_s, s) == kappa


def snapshot(number: int, lineage: int = 1) -> Snapshot:
    return Snapshot.now(Version(lineage, number), SHARE)


def started(publish: Publish) -> PublishThread:
    publisher = PublishThread(publish, lambda version, hurried: None, 20.0)
    publisher.start()
    return publisher


def test_training_goes_on_while_a_version_is_published_and_the_next_one_waits_until_it_is() -> None:
    seen: list[tuple[int, float]] = []
    begun, may_go = threading.Event(), threading.Event()

    def publish(version: Version, share: Share) -> None:
        begun.set()
        may_go.wait(120)
        seen.append((version.number, float(sum(row.sum() for row in share.rows.values()))))

    publisher = started(publish)
    publisher.hand_over(snapshot(1))
    begun.wait(120)
    assert not publisher.free
    with pytest.raises(RuntimeError, match="was handed over before another version was published"):
        publisher.hand_over(snapshot(2))
    assert seen == []
    may_go.set()
    publisher.wait()
    assert publisher.free
    publisher.hand_over(snapshot(3))
    publisher.wait()
    assert [number for number, _ in seen] == [1, 3]
    publisher.close()


def test_a_failure_in_the_background_reaches_the_learner() -> None:
    def publish(_version: Version, _share: Share) -> None:
        raise ValueError("disk full")

    publisher = started(publish)
    publisher.hand_over(snapshot(1, 1))
    with pytest.raises(ValueError, match="disk full"):
        publisher.wait()
    with pytest.raises(ValueError, match="disk full"):
        publisher.hand_over(snapshot(2, 1))
    publisher.close()


def test_a_version_has_arrived_once_every_living_worker_serves_it() -> None:
    publisher = started(lambda *_: None)
    publisher.hand_over(snapshot(3, 1))
    publisher.wait()
    stored_s = publisher.t_bcast_s
    publisher.observe(serving(3, 2))
    assert publisher.t_bcast_s == stored_s
    publisher.observe(serving(3, None, 4))
    arrived_s = publisher.t_bcast_s
    assert arrived_s > stored_s
    publisher.observe(serving(4, 4))
    assert publisher.t_bcast_s == arrived_s, "measured once per version"
    publisher.close()


def test_a_publication_that_is_stuck_is_named() -> None:
    may_go = threading.Event()
    publisher = PublishThread(lambda version, share: may_go.wait(120), lambda version, hurried: None, deadline_s=0.05)
    publisher.start()
    publisher.hand_over(snapshot(7, 3))
    with pytest.raises(DeadlineError, match=r"version 3\.7 was not published within 0 s"):
        publisher.wait()
    may_go.set()
    publisher.wait()
    publisher.close()


def test_what_follows_a_publication_is_told_that_a_newer_one_waits() -> None:
    told: list[bool] = []
    partial_payloads, may_go = threading.Event(), threading.Event()

    def further(version: Version, hurried: Callable[[], bool]) -> None:
        told.append(hurried())
        partial_payloads.set()
        may_go.wait(120)
        told.append(hurried())

    publisher = PublishThread(lambda version, share: None, further, 20.0)
    publisher.start()
    publisher.hand_over(snapshot(1, 1))
    assert partial_payloads.wait(120)
    publisher.hand_over(snapshot(2, 1))
    may_go.set()
    publisher.wait()
    publisher.close()
    assert told == [False, True, False, False]
