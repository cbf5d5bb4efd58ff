from pathlib import Path

from echo_queue.queue import Evaluations
from echo_queue.reporting.evaluation_record import FILE, EvaluationRecord, newest
from tests.evaluation.answered import given_up_at, result_at
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness


def test_a_line_is_written_once_and_a_torn_one_spoils_no_other(tmp_path: Path) -> None:
    record, path = EvaluationRecord(tmp_path), tmp_path / FILE
    assert record.read() == ()
    record.add([result_at(0).line, result_at(20).line, result_at(0).line])
    record.add([result_at(20).line])
    assert record.read() == (result_at(0), result_at(20))
    path.write_bytes(path.read_bytes()[:-30])
    record.add([result_at(40).line])
    assert record.read() == (result_at(0), result_at(40))


def test_what_redis_and_the_file_have_is_read_once(queue: Clients, tmp_path: Path) -> None:
    harness = QueueHarness(queue, prompts=0)
    harness.submit("held-out", 2, order="held_out")
    number = queue.evaluate(0, harness.version, "held-out")
    assert number
    queue.conclude(0, number, result_at(20).line, b"of another release")
    record, told = EvaluationRecord(tmp_path), Evaluations(queue.caller)
    record.add([result_at(0).line, result_at(20).line])
    assert record.read(told) == (result_at(0), result_at(20))
    assert record.untold(told) == [result_at(0).line]
    assert EvaluationRecord(tmp_path / "elsewhere").read(told) == (result_at(20),)


def test_the_newest_result_is_that_of_the_surviving_history() -> None:
    results = [result_at(40), result_at(20, lineage=2), given_up_at(30, "no worker", lineage=2), result_at(0, name="a")]
    assert newest(results) == (result_at(0, name="a"), result_at(20, lineage=2))
