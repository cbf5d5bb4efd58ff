"""What `benchmarks.mixture` makes of a run's updates; the run itself is that of its configuration."""

from dataclasses import replace

import pytest

from benchmarks.mixture import LEAST_GAIN, MOST_POINTS, Figures, Share, shares, targets
from echo_queue.reporting.components import ComponentFigures
from tests.synthetic import update


def trained(groups: int, reward: float = 0.5) -> ComponentFigures:
    return ComponentFigures(groups, 16 * groups, 16 * groups, reward, 1.0, 0.0, 0)


def test_the_worst_window_is_told_and_not_the_mean_of_all() -> None:
    updates = [update(version, components={"a": trained(6), "b": trained(4)}) for version in range(1, 101)]
    a, b = shares(updates, {"a": 6, "b": 4})
    assert (a.share, a.by_weight, a.worst_points) == (0.6, 0.6, pytest.approx(0))
    updates[50] = update(51, components={"a": trained(10)})
    updates[90] = update(91, components={"a": trained(2), "b": trained(8)})
    a, b = shares(updates, {"a": 6, "b": 4})
    assert a.share == 0.6 and a.worst_points == b.worst_points == pytest.approx(2.0)
    with pytest.raises(SystemExit, match="component c was not trained"):
        shares(updates, {"a": 6, "b": 4, "c": 1})


def test_each_promise_is_broken_by_what_it_forbids() -> None:
    good = Share("a", 0.6, 0.6, MOST_POINTS, 0.1, 0.1 + LEAST_GAIN + 0.01)
    figures = Figures(300, 2, 0, [good, good])
    assert all(targets(figures).values())
    broken = (
        replace(figures, shares=[good, replace(good, worst_points=MOST_POINTS + 0.01)]),
        replace(figures, shares=[good, replace(good, reward_last=0.1)]),
        replace(figures, learners=1),
        replace(figures, exit_code=3),
    )
    assert [list(targets(one).values()).count(False) for one in broken] == [1, 1, 1, 1]
