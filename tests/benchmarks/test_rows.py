"""A benchmark tells each row as soon as it is known, and an error of one row as that row's."""

from pathlib import Path

import pytest

from benchmarks.rows import Rows
from benchmarks.stability import EVALUATE_EVERY, Setting, stored, sweep
from benchmarks.verdict import conclude


def test_a_lost_row_is_told_as_such_the_others_are_known_and_it_is_not_ok(capsys: pytest.CaptureFixture[str]) -> None:
    rows, known = Rows(), []
    for number in range(4):
        with rows.row(f"row {number}"):
            if number == 1:
                raise RuntimeError("its server died")
            if number == 2:
                raise SystemExit("its load ended")
            known.append(number)
            print(f"row {number}: {number}")
    assert known == [0, 3]
    assert conclude(known, rows.promises, as_json=True) == 1
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "row 0: 0",
        "row 1: lost: RuntimeError: its server died",
        "row 2: lost: SystemExit: its load ended",
        "row 3: 3",
        "FAIL row 1 is measured",
        "FAIL row 2 is measured",
        '{"figures":[0,3],"targets":{"row 1 is measured":false,"row 2 is measured":false},"ok":false}',
    ]
    assert "Traceback" in told.err


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)])
def test_who_ends_a_benchmark_ends_it_whole(end: BaseException) -> None:
    rows = Rows()
    with pytest.raises(type(end)), rows.row("row 0"):
        raise end
    assert not rows.lost


def test_a_sweep_of_trainings_stores_those_beside_a_lost_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Setting("dppo", "copy", 0, 1, 0, EVALUATE_EVERY, 1e-3, "warn")
    lost = good._replace(task="no such task")
    rows = Rows()
    (run,) = sweep([lost, good], tmp_path / "runs.jsonl", rows)
    assert list(stored(tmp_path / "runs.jsonl")) == [run.setting] == [good]
    assert list(rows.lost) == [str(lost)]
    assert "no such task" in capsys.readouterr().out
