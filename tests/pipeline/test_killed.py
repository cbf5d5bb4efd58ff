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
    "kills",
    [
        pytest.param(
            [("celery", submitted), ("worker", leased), ("learner", published), ("store", trained(4))],
            id="celery-at-the-first-submit-worker-at-the-first-lease-learner-after-a-publish-store-before-a-checkpoint",
        ),
        pytest.param(
            [("learner", checkpointed), ("redis", trained(11)), ("redis", trained(19))],
            id="learner-after-a-checkpoint-redis-in-mid-training-and-near-the-end",
        ),
    ],
)
def test_a_role_and_the_supervisor_are_killed_then_the_run_is_started_again(
    start: Callable[..., Running], kills: list[tuple[str, Moment]]
) -> None:
    run = start()
    for role, moment in kills:
        run.until(moment)
        run.kill(role)
        run.kill("supervisor")
        run.again()
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)
