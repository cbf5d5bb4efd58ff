from pathlib import Path

import pytest

from echo_queue.reporting.components import ComponentFigures
from tests.evaluation.answered import given_up_at, result_at
from tests.synthetic import update


def test_what_tensorboard_reads_is_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from echo_queue.reporting import tensorboard

    evaluated = [result_at(0), given_up_at(2, "no worker"), result_at(4, low=None, high=None)]
    for _ in range(2):
        updates = [update(version, workers=None) for version in range(1, 6)]
        updates[2] = update(
            3, workers=None, components={"math": ComponentFigures(5, 80, 9, 0.5, 7.0, 0.25, 1, {"a": 2.0})}
        )
        tensorboard.write(updates, tmp_path / "tensorboard", evaluated)
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [event.step for event in read.Scalars("reward/mean")] == [1, 2, 3, 4, 5]
    assert read.Scalars("queue/backlog")[0].value == update(1).depths["backlog"]
    assert "queue/workers" not in read.Tags()["scalars"], "these updates are of a learner that did not say it"
    assert [(event.step, round(event.value, 2)) for event in read.Scalars("held-out/mean")] == [(0, 0.2), (4, 0.24)]
    assert [event.step for event in read.Scalars("held-out/low")] == [0]
    assert len(read.Scalars("held-out/pass_at_4")) == 2
    component = {tag: read.Scalars(tag) for tag in read.Tags()["scalars"] if tag.startswith("components/")}
    assert {tag.removeprefix("components/math/"): event.value for tag, [event] in component.items()} == {
        "groups": 5, "reward_mean": 0.5, "length_mean": 7.0, "truncated_fraction": 0.25, "zero_variance_groups": 1,
        "rewards/a": 2.0,
    }, "an update that trained none of a component says nothing of it"  # fmt: skip
