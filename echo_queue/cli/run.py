"""`echo-queue run`: all roles of a configuration on this machine, from nothing to a trained model.

- Everything that is wrong is reported before any process starts.
- A run that was stopped or killed, at any moment, continues; a finished one is left as it is.
- No phase lasts for ever: each wait has a deadline that names what it waits for.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
from rich.console import Console

from echo_queue.atomic_file import write_atomically
from echo_queue.cli.audit import sentence
from echo_queue.cli.config import problems_of
from echo_queue.cli.live.screen import Screen
from echo_queue.cli.live.view import short
from echo_queue.cli.live.watcher import RunWatcher, monitor
from echo_queue.cli.redis_cli import monitor_line
from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.errors import ConfigError, DeadlineError, EchoQueueError, Problem, ServiceError
from echo_queue.launch.roles import command
from echo_queue.launch.supervisor import Role, Supervisor
from echo_queue.queue.types import Audit
from echo_queue.reporting import metrics, results
from echo_queue.reporting.html import duration

SERVICES_DEADLINE_S = 90.0
BASE_MODEL_DEADLINE_S = 1_800.0
LEARNER_DEADLINE_S = 300.0
"""Until it has written the run's rules into the queue, which a submission needs."""
LOOK_S = 0.2
STALL_MARGIN_S = 60.0
"""The roles' own deadlines come first: they know better what is missing."""


def run(path: Path) -> int:
    """Exit code: 0 when the run is finished, 1 when the queue's identity is broken, 130 when it was stopped."""
    config, problems = problems_of(path)
    if config:
        problems += (*filter(None, [results.problem(config)]), *unfit_prompts(config))
    if config is None or problems:
        raise ConfigError(*problems)
    if finished(config):
        _say_finished(config)
        return 0
    environ = {**os.environ, "ECHO_QUEUE_CONFIG": str(path.resolve()), "PYTHONUNBUFFERED": "1"}
    with Supervisor(config.run.dir, environ) as roles:
        before = {number: signal.signal(number, roles.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            found = Pipeline(config, path, roles).run()
        except KeyboardInterrupt:
            _say_stopped(path)
            return 130
        finally:
            roles.stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)
    return _conclude(config, found)


def unfit_prompts(config: Config) -> tuple[Problem, ...]:
    """What the first prompts have wrong; the others are looked at when they are submitted."""
    from echo_queue.submission.declaration import check_first_rows

    try:
        check_first_rows(config)
    except EchoQueueError as error:
        return error.problems
    return ()


class Pipeline:
    """The phases of a run, in order, with every role kept alive meanwhile."""

    def __init__(self, config: Config, path: Path, roles: Supervisor) -> None:
        self.config = config
        self.path = path
        self.roles = roles
        self.deadline_s = config.queue.stall_deadline_s + STALL_MARGIN_S

    def run(self) -> Audit:
        """The audit of the finished run, made while its services still answered."""
        config, roles = self.config, self.roles
        with RunWatcher(config) as watcher, Screen(watcher, roles) as screen:
            screen.phase("starting the services")
            roles.start(*services(config, self.path))
            if config.model.base == "init":
                roles.start(Role("init-model", tuple(command("learner.base_model", self.path)), ends=True))
            self._wait(screen, self._services_answer, SERVICES_DEADLINE_S, "services")
            screen.redis_cli = monitor_line(config)
            roles.start(celery(config))
            if config.model.base == "init":
                screen.phase("making the base model", role="init-model")
                self._wait(screen, lambda: roles.done("init-model"), BASE_MODEL_DEADLINE_S, "base model")
            screen.phase("starting the learner and the workers")
            roles.start(learner(self.path), *workers(config, self.path))
            self._wait(screen, lambda: watcher.status is not None, LEARNER_DEADLINE_S, "learner")
            roles.start(submission(config, self.path))
            screen.phase("training")
            while not (roles.done("learner") and roles.done("submit")):
                if watcher.still_s > self.deadline_s:
                    raise _stalled(watcher)
                roles.tick()
                screen.refresh()
            screen.phase("finishing")
            roles.stop(celery(config).name, *(role.name for role in workers(config, self.path)))
            watcher.look()
            screen.refresh()
            return monitor(config).audit()

    def _wait(self, screen: Screen, until: Callable[[], bool], deadline_s: float, what: str) -> None:
        def look() -> bool:
            screen.refresh()
            return until()

        self.roles.wait(look, deadline_s, what)

    def _services_answer(self) -> bool:
        try:
            monitor(self.config)
            connect_store(self.config, deadline_s=LOOK_S)
        except ServiceError:
            return False
        return True


def services(config: Config, path: Path) -> Iterator[Role]:
    """The embedded servers' keeper, unless all of them are elsewhere."""
    if EMBEDDED in (config.redis.url, config.store.url):
        yield Role("services", (*_ECHO_QUEUE, "services", str(path)), grace_s=20.0, servers=True)


def celery(config: Config) -> Role:
    """One Celery worker; its children are of its process group and end with it."""
    options = ("--concurrency", str(config.submission.processes), "--loglevel", "INFO")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    return Role("celery", (sys.executable, "-m", "celery", "-A", "echo_queue.submission", "worker", *options, *quiet))


def submission(config: Config, path: Path) -> Role:
    return Role("submit", (*_ECHO_QUEUE, "submit", str(path)), ends=True)


def workers(config: Config, path: Path) -> Iterator[Role]:
    for number in range(1, config.rollout.workers + 1):
        name = f"worker-{number}"
        yield Role(name, tuple(command("workers", path, "--name", name)), grace_s=config.rollout.grace_s + 5, ends=True)


def learner(path: Path) -> Role:
    return Role("learner", tuple(command("learner", path)), grace_s=60.0, ends=True)


def finished(config: Config) -> bool:
    return results.marker(config).exists()


_ECHO_QUEUE = (sys.executable, "-m", "echo_queue.cli")


def _conclude(config: Config, found: Audit) -> int:
    """The report, the marker, and what the person gets to see at last."""
    page = results.write(config, identity=found.ok)
    console = Console(highlight=False, soft_wrap=True)
    summary = metrics.summarise(metrics.read(config.run.dir / "metrics.jsonl"))
    if found.ok:
        facts = {"finished": datetime.now(UTC).isoformat(timespec="seconds"), "updates": summary.updates}
        write_atomically(results.marker(config), orjson.dumps(facts), "marker")
    console.print()
    console.print(
        f"[bold]{config.run.name}[/]: reward {summary.reward_first:.2f} → [bold green]{summary.reward_last:.2f}[/] in "
        f"{summary.updates:,} updates, {duration(summary.seconds)}; mean lag {summary.mean_lag:.2f} "
        f"(of tokens {summary.token_lag:.2f}, largest {summary.max_lag}, bound {config.staleness.s}); "
        f"learner idle {summary.idle_share:.0%}"
    )
    console.print(sentence(found))
    console.print(_of_weights(summary))
    _say_where(console, config, page)
    return 0 if found.ok else 1


def _of_weights(summary: metrics.Summary) -> str:
    stored = summary.anchor_bytes + summary.delta_bytes
    return (
        f"weights: {short(stored)}B stored, {summary.delta_bytes / max(stored, 1):.0%} as differences; "
        f"workers read {short(summary.store_bytes)}B from the store, {short(summary.peer_bytes)}B from one another"
    )


def _stalled(watcher: RunWatcher) -> DeadlineError:
    what = f"nothing moved for {watcher.still_s:.0f} s: {'; '.join(watcher.held_up)}"
    return DeadlineError(Problem("run", what, "look into logs/ and docs/operations.md, then run again: it continues"))


def _say_where(console: Console, config: Config, page: Path) -> None:
    console.print(f"  model    {config.run.dir / 'model'}")
    console.print(f"  report   {page}")
    console.print(f"  metrics  {config.run.dir / 'metrics.jsonl'}")


def _say_finished(config: Config) -> None:
    console = Console(highlight=False, soft_wrap=True)
    facts = orjson.loads(results.marker(config).read_bytes())
    console.print(f"[bold]{config.run.name}[/] is finished: {facts['updates']:,} updates, {facts['finished']}")
    _say_where(console, config, config.run.dir / "report.html")
    console.print(f"  To run it anew, remove {config.run.dir} or name another run.dir.")


def _say_stopped(path: Path) -> None:
    Console(stderr=True, highlight=False).print(f"stopped; `echo-queue run {path}` continues it")
