"""Announcements of the version under way come from the learner alone, in order, for that version only, and expire."""

import pytest

from echo_queue.errors import FencedError
from echo_queue.queue import Announced
from echo_queue.queue.published_weights import ANNOUNCED_KEPT
from echo_queue.records import Published, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness

DELTA, ANCHOR = "0001.00000007/from-0001.00000006", "0001.00000007/full"
VERSION = Version(1, 7)


@pytest.fixture
def learner(queue: Clients) -> Clients:
    QueueHarness(queue)
    assert queue.resume(Version(0, 7)).lineage == 1
    return queue


def announced(queue: Clients) -> Announced:
    found = queue.latest_weights().announced
    assert found is not None
    return found


def document(place: int) -> bytes:
    return f"document {place}".encode()


def test_workers_read_documents_in_order_from_where_they_are(learner: Clients) -> None:
    assert learner.latest_weights().announced is None
    for place in range(5):
        assert learner.announce(1, VERSION, DELTA, place, document(place))
    assert announced(learner) == Announced(DELTA, 4)
    assert learner.announced_parts(announced(learner), 0) == {place: document(place) for place in range(5)}
    assert learner.announced_parts(announced(learner), 3) == {3: document(3), 4: document(4)}
    assert learner.announced_parts(announced(learner), 5) == {}


def test_another_route_takes_its_place(learner: Clients) -> None:
    """A difference was given up for an anchor: a worker that still asks for its parts gets none."""
    learner.announce(1, VERSION, DELTA, 0, document(0))
    before = announced(learner)
    learner.announce(1, VERSION, ANCHOR, 0, document(9))
    assert learner.announced_parts(before, 0) == {}
    assert learner.announced_parts(announced(learner), 0) == {0: document(9)}


def test_it_is_gone_when_the_pointer_moves_and_does_not_come_back(learner: Clients) -> None:
    learner.announce(1, VERSION, DELTA, 0, document(0))
    learner.publish(1, Published(VERSION, "manifest", "digest"))
    assert learner.latest_weights().announced is None
    assert not learner.announce(1, VERSION, DELTA, 1, document(1)), "it came late"
    assert not learner.announce(1, Version(1, 6), DELTA, 1, document(1))
    assert learner.latest_weights().announced is None and learner.client.exists(learner.keys.coming) == 0
    assert learner.announce(1, Version(1, 8), "0001.00000008/full", 0, document(0))


def test_a_new_lineage_forgets_it_and_an_older_learner_announces_nothing_more(learner: Clients) -> None:
    learner.announce(1, VERSION, DELTA, 0, document(0))
    assert learner.resume(Version(0, 7)).lineage == 2
    assert learner.latest_weights().announced is None
    with pytest.raises(FencedError):
        learner.announce(1, VERSION, DELTA, 1, document(1))


def test_it_never_grows_beyond_its_bound(learner: Clients) -> None:
    for place in range(ANNOUNCED_KEPT + 20):
        learner.announce(1, VERSION, DELTA, place, document(place))
    assert learner.client.hlen(learner.keys.coming) == 3 + ANNOUNCED_KEPT
    assert learner.announced_parts(announced(learner), 0) == {
        place: document(place) for place in range(20, ANNOUNCED_KEPT + 20)
    }
    assert not learner.announce(1, VERSION, DELTA, ANNOUNCED_KEPT + 20, bytes(65_537))


def test_an_announcement_made_again_changes_nothing(learner: Clients) -> None:
    for _ in range(2):
        assert learner.announce(1, VERSION, DELTA, 0, document(0))
    assert learner.announced_parts(announced(learner), 0) == {0: document(0)}
