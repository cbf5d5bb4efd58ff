"""What updates report about themselves: the newest learner says it, everyone reads it, and it stays bounded."""

import pytest

from echo_queue.errors import FencedError
from echo_queue.queue import UpdateRecord, UpdateRecords
from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness


def record(lineage: int, number: int, line: bytes = b"{}") -> UpdateRecord:
    return UpdateRecord(Version(lineage, number), "0.1.0", f"set/0/{number}", line)


def say(learner: Clients, lineage: int, records: list[UpdateRecord]) -> None:
    """Records go with a numbered move: here one that changes nothing."""
    learner.record(lineage, records)
    learner.advance(lineage, 0, 0, 1.0)


@pytest.fixture
def learner(queue: Clients) -> Clients:
    QueueHarness(queue)
    assert queue.resume().lineage == 1
    return queue


def test_records_are_read_from_where_one_is_and_said_twice_they_are_there_once(learner: Clients) -> None:
    assert learner.updates() == [] and learner.newest_update() is None
    said = [record(1, number) for number in range(1, 8)]
    say(learner, 1, said)
    say(learner, 1, said)
    assert learner.updates() == said
    assert learner.updates(Version(1, 5)) == said[5:]
    assert learner.newest_update() == said[-1]


def test_a_later_lineage_follows_and_an_older_one_says_nothing_more(learner: Clients) -> None:
    say(learner, 1, [record(1, 8)])
    lineage = learner.resume().lineage
    with pytest.raises(FencedError):
        say(learner, 1, [record(1, 9)])
    assert learner.updates() == [record(1, 8)]
    say(learner, lineage, [record(1, 8), record(lineage, 3)])
    assert learner.updates() == [record(1, 8), record(lineage, 3)]


def test_the_newest_are_kept_and_none_is_large(learner: Clients) -> None:
    """One update more than are kept, and one record that is larger than any of ours: so much has no learner to say."""
    say(learner, 1, [record(1, number) for number in range(1, 10_301)])
    kept = learner.updates()
    assert 10_000 <= len(kept) <= 10_200 and kept[-1] == record(1, 10_300)
    say(learner, 1, [record(1, 10_301, bytes(16_385))])
    assert learner.newest_update() == record(1, 10_300)


def test_the_newest_are_read_alone_and_all_that_ever_came_are_counted(learner: Clients) -> None:
    records = UpdateRecords(learner.caller)
    assert (records.newest(3), records.recorded()) == ([], 0)
    said = [record(1, number) for number in range(1, 8)]
    say(learner, 1, said)
    say(learner, 1, said)
    assert (records.newest(3), records.recorded()) == (said[-3:], 7)
    learner.client.xtrim(learner.keys.updates, maxlen=2, approximate=False)
    assert (records.newest(3), records.recorded()) == (said[-2:], 7), "also those that are gone by now"
