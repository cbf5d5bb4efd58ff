"""Whole runs in each of `rollout.mode`: the lags that the learner records are those that the mode promises."""

from collections.abc import Callable

import pytest

from tests.pipeline.running import Running, assert_every_prompt_was_trained_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def whole_run(start: Callable[..., Running], mode: str, **settings: str) -> Running:
    run = start(ECHO_QUEUE_ROLLOUT__MODE=mode, **settings)
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)
    return run


@pytest.mark.parametrize(("mode", "workers"), [("pull", "2"), ("sync", "1")])
def test_before_every_generation_means_no_lag(start: Callable[..., Running], mode: str, workers: str) -> None:
    run = whole_run(start, mode, ECHO_QUEUE_STALENESS__S="0", ECHO_QUEUE_ROLLOUT__WORKERS=workers)
    assert {lag for update in run.updates() for lag in update.lags} == {"0"}
    assert all(update.token_lag == 0 and update.mixed_groups == 0 for update in run.updates())


def test_between_generations_leaves_each_group_of_one_version(start: Callable[..., Running]) -> None:
    run = whole_run(start, "push-pull")
    assert sum(update.mixed_groups for update in run.updates()) == 0


def test_between_tokens_leaves_tokens_no_older_than_their_groups(start: Callable[..., Running]) -> None:
    run = whole_run(start, "in-flight")
    for update in run.updates():
        lags = sorted(map(int, update.lags))
        assert 0 <= update.token_lag <= lags[-1]
        assert update.token_lag >= lags[0] or update.mixed_groups, "newer than its group is only a token of a mixed one"
