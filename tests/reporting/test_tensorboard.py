from pathlib import Path

import pytest

from tests.synthetic import update


def test_what_tensorboard_reads_is_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from echo_queue.reporting import tensorboard

    for _ in range(2):
        tensorboard.write([update(version, workers=None) for version in range(1, 6)], tmp_path / "tensorboard")
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("reward/mean")] == [1, 2, 3, 4, 5]
    assert read.Scalars("queue/backlog")[0].value == update(1).depths["backlog"]
    assert "queue/workers" not in read.Tags()["scalars"], "these updates are of a learner that did not say it"
