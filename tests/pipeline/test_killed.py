"""The run completes, and every prompt is trained exactly once, whatever is killed at whatever moment."""

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from echo_queue.reporting import outcome
from tests.pipeline.supervised_run import (
    Moment,
    SupervisedRun,
    assert_every_prompt_was_trained_once,
    assert_no_lag,
    checkpointed,
    leased,
    locked,
    published,
    submitted,
    trained,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_run_is_refused_twice_left_killed_in_every_role_and_goes_on_each_time(
    start: Callable[..., SupervisedRun],
) -> None:
    """Strictly on-policy, with two workers that look for weights before every generation: nothing may lag."""
    strict = {"ECHO_QUEUE_STALENESS__S": "0", "ECHO_QUEUE_ROLLOUT__WORKERS": "2"}
    run = start(ECHO_QUEUE_ROLLOUT__MODE="pull", **strict)
    run.until(locked)
    run.process.send_signal(signal.SIGSTOP)  # else the whole run may be over before the second one is refused
    assert_a_second_run_is_refused(run)
    run.process.send_signal(signal.SIGCONT)

    run.until(leased)
    run.process.terminate()
    assert run.ends() == 130
    said = run.output.read_text()
    assert "continues it" in said
    assert 0 <= said.find("stopping: ") < said.find("stopped; "), "what takes seconds is said before it begins"
    kept = outcome.read(run.config)
    assert kept and kept.audit.ok and kept.audit.tasks + kept.audit.replay, "it answers for the services"
    assert not kept.finished
    run.again()
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
    run.until(trained(18))
    run.kill("supervisor")
    run.again()
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)
    assert_no_lag(run)


def assert_a_second_run_is_refused(run: SupervisedRun) -> None:
    command = [sys.executable, "-m", "echo_queue.cli", "run", *run.process.args[4:]]  # type: ignore[index]
    second = subprocess.run(
        command, cwd=run.directory, env=run.environ, capture_output=True, text=True, timeout=180, check=False
    )
    assert second.returncode == 2
    assert f"is being run already, by process {run.process.pid}" in second.stderr


@pytest.mark.proof(kind="whole runs", share=0.15)
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
    start: Callable[..., SupervisedRun], kills: list[tuple[str, Moment]]
) -> None:
    run = start()
    for role, moment in kills:
        run.until(moment)
        run.kill(role)
        run.kill("supervisor")
        run.again()
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)
