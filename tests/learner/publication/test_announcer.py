"""Announcing delays no upload, keeps the order, and gives a route up where it cannot."""

import logging
from collections.abc import Iterator

import pytest
import redis

from echo_queue.records import Version
from echo_queue.weights import Announcement, Part
from learner.publication.announcer import Announcer
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.servers.ports import free_port
from tests.waiting import wait_until

WAIT_S = 120.0


def announcement(place: int, number: int = 7) -> Announcement:
    part = Part(f"part {place}", 1, 1, ("ab" * 32,))
    return Announcement("run", Version(1, number), None, None, place, part)


@pytest.fixture
def announcer(queue: Clients) -> Iterator[Announcer]:
    QueueHarness(queue)
    assert queue.resume().lineage == 1
    announcer = Announcer(queue.learner(1))
    announcer.start()
    yield announcer
    announcer.close()
    announcer.join(WAIT_S)
    assert not announcer.is_alive()


def test_workers_see_what_is_announced_in_its_order(queue: Clients, announcer: Announcer) -> None:
    for place in range(9):
        announcer.announce(announcement(place), f"document {place}".encode())
    wait_until(lambda: (found := queue.latest_weights().announced) and found.last == 8, "the last of them")
    found = queue.latest_weights().announced
    assert found and list(queue.announced_parts(found, 0).values()) == [
        f"document {place}".encode() for place in range(9)
    ]


def test_after_one_that_was_not_taken_its_route_is_given_up_and_the_next_is_not(
    queue: Clients, announcer: Announcer
) -> None:
    announcer.announce(announcement(0), bytes(1 << 20))
    announcer.announce(announcement(1), b"after a gap")
    announcer.announce(announcement(0, number=8), b"the next")
    wait_until(lambda: queue.latest_weights().announced, "the next route")
    found = queue.latest_weights().announced
    assert found and queue.announced_parts(found, 0) == {0: b"the next"}


def test_a_learner_that_was_taken_over_announces_nothing(
    queue: Clients, announcer: Announcer, caplog: pytest.LogCaptureFixture
) -> None:
    assert queue.resume().lineage == 2
    with caplog.at_level(logging.INFO):
        for place in range(3):
            announcer.announce(announcement(place), b"document")
        announcer.close()
        announcer.join(WAIT_S)
    assert not announcer.is_alive()
    assert queue.latest_weights().announced is None
    assert [record.levelname for record in caplog.records] == ["INFO"], "publishing itself will say it louder"


def test_a_redis_that_is_away_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    announcer = Announcer(Clients(redis.Redis(port=free_port()), "run", deadline_s=3.0).learner(1))
    announcer.start()
    with caplog.at_level(logging.INFO):
        for place in range(1000):
            announcer.announce(announcement(place), b"document")
        assert not caplog.records, "the first try is still under way"
        wait_until(lambda: caplog.records, "the end of the first try")
        announcer.close()
        announcer.join(WAIT_S)
    assert not announcer.is_alive() and len(caplog.records) == 1, "one try for all of the route"
