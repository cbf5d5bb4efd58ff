"""A run that was ended early goes on where it was: it had reached a limit, or its terminal was closed."""

import signal
from collections.abc import Callable

import pytest

from echo_queue.connections.connect import connect_store
from learner.recovery.checkpoint import trained_ids
from tests.pipeline.supervised_run import SupervisedRun, serving, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_limit_that_is_raised_lets_the_run_go_on_and_a_closed_terminal_loses_nothing(
    start: Callable[..., SupervisedRun],
) -> None:
    limit = "ECHO_QUEUE_LEARNER__MAX_UPDATES"
    rarely = {"ECHO_QUEUE_LEARNER__CHECKPOINT_UPDATES": "1000", "ECHO_QUEUE_ROLLOUT__WORKERS": "1"}
    run = start(**rarely, **{limit: "3"})
    assert run.ends() == 0, run.told()
    assert [update.version for update in run.updates()] == [1, 2, 3]

    run.environ |= {limit: "0", "ECHO_QUEUE_RUN__KEEP_OPEN": "true"}  # it does not end by itself
    run.again()
    run.until(trained(6))
    run.process.send_signal(signal.SIGHUP)
    assert run.ends() == 130, run.told()
    assert "the run had ended at update 3, by learner.max_updates; it goes on" in run.output.read_text()
    updates = run.updates()
    assert [update.version for update in updates] == list(range(1, len(updates) + 1))
    with serving(run.config):
        saved = trained_ids(connect_store(run.config))
    assert sorted(saved) == sorted(task for update in updates for task in update.trained_ids)
