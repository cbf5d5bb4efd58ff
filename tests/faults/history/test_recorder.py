"""The acts of roles are on disk before and after they happen, and what they made can be told apart on its way."""

from pathlib import Path

import numpy as np
import pytest

from echo_queue import failpoints
from echo_queue.queue.payloads import Payloads
from echo_queue.queue.types import StoredPartial
from echo_queue.records import NOTHING, Group, PartialGroup, PartialSample, Sample, Span
from echo_queue.records.group_codec import decode, encode
from tests.faults.history.facts import Begun, Generated, Part
from tests.faults.history.recorder import Recorder, read


def group(version: int = 3) -> Group:
    tokens = np.arange(4, dtype=np.int32)
    sample = Sample(tokens, np.full(4, -1.0, np.float32), (Span(0, version), Span(2, version + 1)), 1.0, "stop")
    return Group("a/0/0", "a", 0, 0, 0, "w", 1, tokens, (sample, sample))


def test_a_group_keeps_its_mark_on_its_way_and_another_has_another() -> None:
    there = Generated.of(group())
    assert Generated.of(decode(encode(group()))) == there
    assert (there.oldest, there.newest) == (3, 4)
    assert Generated.of(group(version=2)).mark != there.mark


def test_a_partial_keeps_its_mark_from_who_stores_it_to_who_goes_on() -> None:
    tokens = np.arange(4, dtype=np.int32)
    partial_sample = PartialSample(tokens, np.full(4, -1.0, np.float32), (Span(0, 3),))
    stored = Begun.of(PartialGroup("a/0/0", 1, (partial_sample, NOTHING)))
    task, *words = Payloads(None, 10**6).keep_partials("w", PartialGroup("a/0/0", 1, (partial_sample, NOTHING)))
    leased = Begun.told(task, StoredPartial(*words))
    assert stored == leased._replace(highest=3) and stored.tokens == 4


def test_an_attempt_is_on_disk_before_it_is_sent_and_its_answer_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "observer", Recorder(tmp_path, "worker-1"))

    def send() -> list[list[bytes]]:
        assert [(event.step, event.answered) for event in read(tmp_path)] == [("complete", False)]
        return [[b"accepted"]]

    failpoints.step("complete", send, ("worker-1", [group()]))
    attempt, answer = read(tmp_path)
    assert attempt.facts.groups == (Generated.of(group()),)
    assert (answer.answered, answer.number, answer.facts.outcomes) == (True, attempt.number, ("accepted",))
    assert answer.role == "worker-1"


def test_what_fails_has_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "observer", Recorder(tmp_path, "submit"))
    with pytest.raises(OSError, match="away"):
        failpoints.step("submit", _away, ("a", 0, 0, 4, "shards/a", b""))
    assert [(event.step, event.answered) for event in read(tmp_path)] == [("submit", False)]


def test_a_torn_last_line_is_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "observer", Recorder(tmp_path, "submit"))
    for _ in range(2):
        failpoints.step("submit", lambda: [1], ("a", 0, 0, 4, "shards/a", b""))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    assert [event.answered for event in read(tmp_path)] == [False, True, False]
    assert read(tmp_path)[0].facts.parts == (Part(0, 0, 4),)


def _away() -> None:
    raise OSError("away")
