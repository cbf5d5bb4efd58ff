import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from echo_queue.errors import DeadlineError
from echo_queue.queue import Heartbeat, RunRules, Status, WorkerStatus
from echo_queue.records import Version
from learner.publication.publish_thread import Publish, PublishThread, publication_period

WEIGHTS = {"weight": torch.zeros(3)}
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


def started(publish: Publish) -> PublishThread:
    publisher = PublishThread(publish, lambda version, hurried: None, 20.0)
    publisher.start()
    return publisher


def test_training_goes_on_while_a_version_is_published_and_the_newest_follows() -> None:
    seen: list[tuple[int, float]] = []
    partial_payloads, may_go = threading.Event(), threading.Event()

    def publish(version: Version, weights: Mapping[str, Tensor]) -> None:
        partial_payloads.set()
        may_go.wait(10)
        seen.append((version.number, float(weights["weight"].sum())))

    publisher = started(publish)
    publisher.hand_over(Version(1, 1), {"weight": torch.zeros(3)})
    partial_payloads.wait(10)
    for number in (2, 3):
        publisher.hand_over(Version(1, number), {"weight": torch.full((3,), number - 1.0)})
    assert seen == []
    may_go.set()
    publisher.wait()
    assert seen == [(1, 0.0), (3, 6.0)]
    publisher.close()


def test_a_failure_in_the_background_reaches_the_learner() -> None:
    def publish(_version: Version, _weights: Mapping[str, Tensor]) -> None:
        raise ValueError("disk full")

    publisher = started(publish)
    publisher.hand_over(Version(1, 1), WEIGHTS)
    with pytest.raises(ValueError, match="disk full"):
        publisher.wait()
    with pytest.raises(ValueError, match="disk full"):
        publisher.hand_over(Version(1, 2), WEIGHTS)
    publisher.close()


def test_a_version_has_arrived_once_every_living_worker_serves_it() -> None:
    publisher = started(lambda *_: None)
    publisher.hand_over(Version(1, 3), WEIGHTS)
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
    publisher = PublishThread(lambda version, weights: may_go.wait(20), lambda version, hurried: None, deadline_s=0.05)
    publisher.start()
    publisher.hand_over(Version(3, 7), WEIGHTS)
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
        may_go.wait(10)
        told.append(hurried())

    publisher = PublishThread(lambda version, weights: None, further, 20.0)
    publisher.start()
    publisher.hand_over(Version(1, 1), WEIGHTS)
    assert partial_payloads.wait(10)
    publisher.hand_over(Version(1, 2), WEIGHTS)
    may_go.set()
    publisher.wait()
    publisher.close()
    assert told == [False, True, False, False]
