"""Whatever is killed, at whatever moment: the run completes, and every prompt is trained exactly once."""

from collections.abc import Callable

import pytest

from tests.pipeline.running import (
    Moment,
    Running,
    assert_every_prompt_was_trained_once,
    checkpointed,
    leased,
    published,
    submitted,
    trained,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_every_role_killed_in_one_run_is_started_again(start: Callable[..., Running]) -> None:
    run = start()
    for moment, role in (
        (submitted, "celery"),
        (leased, "worker"),
        (trained(3), "redis"),
        (trained(7), "learner"),
        (trained(10), "store"),
        (trained(13), "services"),
        (trained(16), "worker"),
    ):
        run.until(moment)
        run.kill(role)
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)


@pytest.mark.parametrize(
    ("role", "moment"),
    [
        pytest.param("celery", submitted, id="celery-at-the-first-submit"),
        pytest.param("worker", leased, id="worker-at-the-first-lease"),
        pytest.param("learner", published, id="learner-right-after-a-publish"),
        pytest.param("learner", checkpointed, id="learner-right-after-a-checkpoint"),
        pytest.param("redis", trained(8), id="redis-in-mid-training"),
        pytest.param("store", trained(4), id="store-before-a-checkpoint"),
        pytest.param("redis", trained(19), id="redis-near-the-end"),
    ],
)
def test_a_role_and_the_supervisor_killed_then_run_again(
    start: Callable[..., Running], role: str, moment: Moment
) -> None:
    run = start()
    run.until(moment)
    run.kill(role)
    run.kill("supervisor")
    run.again()
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)
