"""What a run says of its updates: as Redis has it, and as the learner's file has it where Redis has nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.queue import UpdateRecord
from echo_queue.records import BASE, Version
from echo_queue.reporting.metrics import MetricsLog, UpdateMetrics
from echo_queue.reporting.run_record import RunRecord, record_of, skew, unrecorded
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.synthetic import update


@pytest.fixture
def learner(queue: Clients) -> Clients:
    QueueHarness(queue)
    queue.resume()
    return queue


def say(learner: Clients, *updates: UpdateMetrics) -> None:
    learner.record(learner.status().learner.lineage, [record_of(one) for one in updates])
    learner.advance(learner.status().learner.lineage, 0, 0, 1.0)


def log(path: Path, *updates: UpdateMetrics) -> None:
    file = MetricsLog(path)
    for one in updates:
        file.write(one)


def test_the_file_answers_until_redis_does_and_what_redis_said_stays_while_it_is_away(
    learner: Clients, tmp_path: Path
) -> None:
    log(tmp_path / "metrics.jsonl", update(1), update(2))
    here, elsewhere = RunRecord(tmp_path / "metrics.jsonl"), RunRecord(tmp_path / "nothing.jsonl")
    assert [one.version for one in here.read(learner)] == [1, 2] and elsewhere.read(learner) == ()
    say(learner, update(1, trained_ids=("set/0/1", "set/0/2")), update(2))
    assert here.read(learner) == elsewhere.read(learner) == (update(1), update(2)), "the ids are on the disk alone"
    assert learner.updates()[0].task == "set/0/1"
    assert elsewhere.read(None) is elsewhere.read(learner), "and is not made anew for each question"


def test_versions_that_a_learner_left_behind_count_no_more(learner: Clients, tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "metrics.jsonl")
    say(learner, *(update(number) for number in range(1, 6)))
    assert len(record.read(learner)) == 5
    learner.resume(Version(1, 3))
    say(learner, update(4, lineage=2, loss=7.0))
    assert [(one.lineage, one.version) for one in record.read(learner)] == [(1, 1), (1, 2), (1, 3), (2, 4)]


def test_a_redis_that_was_lost_is_told_by_the_next_learner_what_it_lacks(learner: Clients, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log(path, *(update(number) for number in range(1, 6)))
    assert [one.version.number for one in unrecorded(path, BASE)] == [1, 2, 3, 4, 5]
    assert [one.version.number for one in unrecorded(path, Version(1, 3))] == [4, 5]
    assert [one.version.number for one in unrecorded(path, Version(2, 1))] == []


def test_roles_of_another_release_are_named_and_what_they_say_is_counted_where_it_is_not_understood(
    learner: Clients, tmp_path: Path
) -> None:
    record = RunRecord(tmp_path / "metrics.jsonl")
    record.read(learner)
    assert skew(learner.status(), record) == ""
    learner.record(1, [replace(record_of(update(1)), release="0.0.9"), UpdateRecord(Version(1, 2), "0.0.9", "", b"{}")])
    learner.advance(1, 0, 0, 1.0)
    assert len(record.read(learner)) == 1
    told = (
        "1 update is recorded in a form that is unknown here, the learner runs release 0.0.9; this command is release"
    )
    assert skew(learner.status(), record, own="0.1.0") == f"{told} 0.1.0"
