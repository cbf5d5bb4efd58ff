"""A real `echo-queue run` in a directory of its own: watched from outside, and killed at named points."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner, Result

from echo_queue.cli.commands import app
from echo_queue.cli.inspect.live.watcher import monitor
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_store
from echo_queue.errors import EchoQueueError
from echo_queue.launch.servers.serving import Services
from echo_queue.queue import Status
from echo_queue.queue.payloads import PARTIALS
from echo_queue.reporting import metrics
from learner.recovery.checkpoint import trained_ids
from tests.processes import children_of, command_of
from tests.waiting import wait_until

TINY = Path(__file__).with_name("tiny.toml")
OWN_PROMPTS = {
    "ENVIRONMENT__KIND": "function",
    "ENVIRONMENT__FUNCTION": "rewards:reward",
    "PROMPTS__SET": "own",
    "PROMPTS__SOURCE": "own.jsonl",
    "PROMPTS__OPTIONS": "{}",
    "ROLLOUT__WORKERS": "1",
}
"""The tiny run on prompts and a reward of one's own."""
PROMPTS, UPDATES = 80, 20
FEW = {"ECHO_QUEUE_PROMPTS__OPTIONS": "{ size = 24, seed = 7, min_numbers = 2, max_numbers = 3, max_value = 9 }"}
"""Prompts of a run that need not last."""
DEADLINE_S = 400.0


class SupervisedRun:
    """A harness for a supervised run; `again` starts the next one in the same directory."""

    def __init__(self, directory: Path, base: Path | None = None, path: Path = TINY, **overrides: str) -> None:
        """`path`: the configuration, which the next run reads anew. `base`: a model in place of the one it names."""
        self.directory, self.path = directory, path
        made = {"ECHO_QUEUE_MODEL__BASE": str(base)} if base else {}
        self.environ = {**os.environ, "ECHO_QUEUE_RUN__DIR": str(directory / "run"), **made, **overrides}
        self.config: Config = load(path, self.environ)
        self.output = directory / "output"
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "echo_queue.cli", "run", str(self.path)],
                cwd=self.directory,
                env=self.environ,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def again(self) -> None:
        assert self.process.poll() is not None
        self.process = self._start()

    def ends(self) -> int:
        """Waits for the run's end and returns its exit code."""
        return self.process.wait(DEADLINE_S)

    def until(self, moment: "Moment") -> None:
        def came_while_the_run_lasts() -> bool:
            if came := moment(self):
                return came
            assert self.process.poll() is None, f"the run ended before that:\n{self.told()}"
            return False

        wait_until(came_while_the_run_lasts, "the moment", DEADLINE_S, self.told)

    def kill(self, role: str) -> None:
        """SIGKILL to the one process that plays `role`, at once."""
        os.kill(self.pid(role), signal.SIGKILL)
        if role == "supervisor":
            self.process.wait(180)

    def pid(self, role: str) -> int:
        """Waits for the role to have a process, where it is being started again."""
        found: list[int] = []

        def started() -> bool:
            pid = self._pid(role)
            found.extend([] if pid is None else [pid])
            return pid is not None

        wait_until(started, f"the start of {role}", 120, self.told)
        return found[0]

    def _pid(self, role: str) -> int | None:
        if role == "supervisor":
            return self.process.pid
        if role in ("redis", "store"):
            noted = self.config.run.dir / "services" / role / "lock"
            return int(noted.read_text()) if noted.exists() and noted.read_text().strip() else None
        # Celery names itself in its own way as soon as it runs, where setproctitle is installed.
        words = {"worker": {"workers"}, "celery": {"celery", "[celeryd:"}}.get(role, {role})
        roles = children_of(self.process.pid)
        return next((pid for pid in roles if words & {*" ".join(command_of(pid)).split()}), None)

    def stop(self) -> None:
        """Ends the run that a failed test left; the guard ends the roles."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(180)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(180)

    def told(self) -> str:
        """Returns what the run and its roles printed, for a failed assertion."""
        logs = sorted((self.config.run.dir / "logs").glob("*.log"))
        parts = [f"── {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]) for log in logs]
        return "\n".join([self.output.read_text()[-4_000:], *parts])

    def status(self) -> Status | None:
        try:
            return monitor(self.config).status()
        except (EchoQueueError, OSError):
            return None

    def asked(self, command: str, *words: str) -> Result:
        """Returns what a command that looks at the run answers. It runs in this process."""
        return CliRunner().invoke(app, [command, str(TINY), *words], env=self.environ)

    def updates(self) -> Sequence[metrics.UpdateMetrics]:
        return metrics.read(self.config.run.dir / "metrics.jsonl")


Moment = Callable[[SupervisedRun], bool]


def locked(run: SupervisedRun) -> bool:
    """The supervisor holds the directory, and nothing has been started yet."""
    lock = run.config.run.dir / "lock"
    return lock.exists() and lock.read_text() == str(run.process.pid)


def submitted(run: SupervisedRun) -> bool:
    """The first prompts are in the queue."""
    status = run.status()
    return status is not None and status.submitted > 0


def leased(run: SupervisedRun) -> bool:
    """A worker holds its first tasks."""
    status = run.status()
    return status is not None and status.in_flight > 0


def trained(version: int) -> Moment:
    """The learner has written update `version` down."""

    def moment(run: SupervisedRun) -> bool:
        updates = run.updates()
        return bool(updates) and updates[-1].version >= version

    return moment


def checkpointed(run: SupervisedRun) -> bool:
    """The first checkpoint is durable and its groups are committed."""
    status = run.status()
    return status is not None and status.trained > 0


def published(run: SupervisedRun) -> bool:
    """Workers may fetch weights that were trained here."""
    status = run.status()
    return status is not None and status.published is not None and status.published.version.number > 0


def assert_no_lag(run: SupervisedRun) -> None:
    """Asserts that all groups were made by the weights that they train, to the last token."""
    assert {lag for update in run.updates() for lag in update.lags} == {"0"}
    assert all(update.token_lag == 0 and update.mixed_groups == 0 for update in run.updates())


def assert_each_group_is_of_one_version(run: SupervisedRun) -> None:
    assert sum(update.mixed_groups for update in run.updates()) == 0


def assert_tokens_are_no_older_than_their_groups(run: SupervisedRun) -> None:
    for update in run.updates():
        lags = sorted(map(int, update.lags))
        assert 0 <= update.token_lag <= lags[-1]
        assert update.token_lag >= lags[0] or update.mixed_groups, "newer than its group is only a token of a mixed one"


@contextmanager
def serving(config: Config) -> Iterator[None]:
    """Runs the services of a run that is over, so that they can be asked."""
    services = Services(config)
    services.start()
    try:
        yield
    finally:
        services.stop()


def assert_every_prompt_was_trained_once(run: SupervisedRun) -> None:
    """Asserts it by the ids that the checkpoints hold, the last authority, and by the queue; S held for each update.

    Nothing of a partial rollout is left in the store, where all of them lie that do not fit in a few bytes.

    The run is over and its services have ended: they are started again to be asked.
    """
    with serving(run.config):
        store = connect_store(run.config)
        trained, left = trained_ids(store), list(store.list(PARTIALS))
        audit = monitor(run.config).audit()
    prompts = run.config.prompts.options["size"]
    assert sorted(trained) == sorted(f"sorting/0/{index}" for index in range(prompts)), "not each once"
    assert audit.ok
    assert left == [], "partial rollouts outlive their tasks"
    assert (audit.submitted, audit.trained) == (prompts, prompts)
    recorded = [task for update in run.updates() for task in update.trained_ids]
    assert sorted(recorded) == sorted(trained), "the metrics tell another story than the checkpoints"
    assert max(int(lag) for update in run.updates() for lag in update.lags) <= run.config.staleness.s
