"""Whole runs in each of `rollout.mode`: the lags that the learner records are those that the mode promises.

Each mode is also that of a whole run which proves something else besides (`test_run`, `test_killed`, `test_tls`,
`test_poker`); here nothing else happens.
"""

from collections.abc import Callable

import pytest

from tests.pipeline.supervised_run import (
    SupervisedRun,
    assert_each_group_is_of_one_version,
    assert_every_prompt_was_trained_once,
    assert_no_lag,
    assert_tokens_are_no_older_than_their_groups,
)

pytestmark = [pytest.mark.proof(kind="whole runs", share=0.15), pytest.mark.timeout(1200)]


def whole_run(start: Callable[..., SupervisedRun], mode: str, **settings: str) -> SupervisedRun:
    run = start(ECHO_QUEUE_ROLLOUT__MODE=mode, **settings)
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)
    return run


@pytest.mark.parametrize(("mode", "workers"), [("pull", "2"), ("sync", "1")])
def test_before_every_generation_means_no_lag(start: Callable[..., SupervisedRun], mode: str, workers: str) -> None:
    run = whole_run(start, mode, ECHO_QUEUE_STALENESS__S="0", ECHO_QUEUE_ROLLOUT__WORKERS=workers)
    assert_no_lag(run)


def test_between_generations_leaves_each_group_of_one_version(start: Callable[..., SupervisedRun]) -> None:
    run = whole_run(start, "push-pull")
    assert_each_group_is_of_one_version(run)


def test_between_tokens_leaves_tokens_no_older_than_their_groups(start: Callable[..., SupervisedRun]) -> None:
    run = whole_run(start, "in-flight")
    assert_tokens_are_no_older_than_their_groups(run)
