"""A run that was ended early goes on where it was: its terminal was closed, or it had reached a limit."""

import re
import signal
from collections.abc import Callable

import pytest

from tests.pipeline.supervised_run import UPDATES, SupervisedRun, assert_every_prompt_was_trained_once, trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_closed_terminal_loses_nothing_and_a_limit_that_is_raised_lets_the_run_go_on(
    start: Callable[..., SupervisedRun],
) -> None:
    limit = "ECHO_QUEUE_LEARNER__MAX_UPDATES"
    rarely = {"ECHO_QUEUE_LEARNER__CHECKPOINT_UPDATES": "1000", "ECHO_QUEUE_ROLLOUT__WORKERS": "1"}
    run = start(**rarely, **{limit: "8"})
    run.until(trained(3))
    run.process.send_signal(signal.SIGHUP)
    assert run.ends() == 130, run.told()
    run.again()
    assert run.ends() == 0, run.told()
    log = (run.config.run.dir / "logs" / "learner.log").read_text(encoding="utf-8")
    [began] = re.findall(r"lineage 2 begins at version (\d+)", log)
    assert int(began) >= 3
    assert [update.version for update in run.updates()] == list(range(1, 9))

    run.environ[limit] = "0"
    run.again()
    assert run.ends() == 0, run.told()
    assert "the run had ended at update 8, by learner.max_updates; it goes on" in run.output.read_text()
    assert [update.version for update in run.updates()] == list(range(1, UPDATES + 1))
    assert_every_prompt_was_trained_once(run)
