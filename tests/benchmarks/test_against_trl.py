"""The figures of the comparison with TRL, by hand."""

import json
from pathlib import Path

import pytest

from benchmarks.against_trl import Curve, Point, courses, plot, row_of, summary, targets
from benchmarks.verdict import conclude


def curve(trainer: str, per_update_s: float, gain: float) -> Curve:
    """30 updates of 16 samples and 100 tokens; the command began 5 s before the training."""
    points = [Point(100.0 + per_update_s * n, min(1.0, gain * n), 16, 100) for n in range(1, 31)]
    return Curve(trainer, 95.0, 100.0, points)


def test_a_training_has_reached_the_reward_once_ten_updates_mean_it() -> None:
    row = row_of(curve("S = 1", 2.0, 0.05))
    # The rewards of updates 12 to 21 are 0.6, 0.65, … 0.95, 1, 1: their mean is 0.82, and 0.775 one update before.
    assert row.reached is not None
    assert (row.updates_needed, row.reached.samples, row.reached.tokens, row.reached.training_s) == (21, 336, 2100, 42)
    assert (row.process_s, row.first_update_s, row.s_per_update) == (47.0, 7.0, 2.0)
    assert row.last_reward == 1.0


def test_what_never_gets_there_is_said_and_breaks_the_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row_of(curve("TRL", 4.0, 0.05)), row_of(curve("S = 0", 3.0, 0.05)), row_of(curve("S = 8", 1.0, 0.01))]
    assert rows[2].reached is None
    assert "| S = 8 | never | never | never | never | never |" in summary(rows)
    assert "| 480 | 1.00 (3,000; 120.0 s) | 1.00 (3,000; 90.0 s) | 0.26 (3,000; 30.0 s) |" in courses(rows)
    assert list(targets(rows).values()) == [True, False, False, False]
    assert list(targets(rows[:2]).values()) == [True, False, True], "0.75 of the training, 0.76 of the process"
    assert conclude(rows, targets(rows), as_json=True) == 1
    verdict = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [len(row["places"]) for row in verdict["figures"]] == [21, 21, 21]
    plot(rows, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text(encoding="utf-8").startswith("<?xml")
