"""`echo-queue run`: all roles of a configuration on this machine, from an empty directory to a trained model.

- All problems are reported before any process starts.
- A run that was stopped or killed, at any moment, continues; a finished run is left as it is. Prompts that died are
  tried again by the next `run`: then their cause may be fixed.
- No phase lasts for ever: each wait has a deadline whose error names the thing that it waited for.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Self

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from echo_queue import failpoints
from echo_queue.cli.audit import sentence
from echo_queue.cli.config import examine
from echo_queue.cli.dead_tasks import revive_all
from echo_queue.cli.live.screen import Screen
from echo_queue.cli.live.view import rewards, short
from echo_queue.cli.live.watcher import RunWatcher, monitor
from echo_queue.cli.placement import ENVIRONMENT, of_run
from echo_queue.cli.redis_cli import monitor_line
from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.connections.endpoints import EMBEDDED, services_dir
from echo_queue.errors import (
    AGAIN,
    DONE,
    HOPELESS,
    STOPPED,
    ConfigError,
    DeadlineError,
    EchoQueueError,
    HopelessError,
    Problem,
    ServiceError,
)
from echo_queue.launch import collection
from echo_queue.launch.problem_output import WARNING, print_problems, print_wrapped
from echo_queue.launch.roles import FORKED_WITH, command
from echo_queue.launch.supervisor import Role, Supervisor
from echo_queue.queue import Audit, Monitor, Operator, Status
from echo_queue.queue.counts import agreeing, counted
from echo_queue.queue.dead_causes import LOOKED_AT, DeadCause, causes, check_first_groups
from echo_queue.reporting import metrics, outcome, results
from echo_queue.reporting.html import duration
from echo_queue.submission.declaration import changed_source, left_as_it_is

SERVICES_DEADLINE_S = 90.0
BASE_MODEL_DEADLINE_S = 1_800.0
LEARNER_DEADLINE_S = 300.0
"""The deadline for the learner to write the run rules into the queue, which a submission needs."""
LOADING_S = 60.0
"""Roles that have not been heard for so long since they were started count as loading, and not as missing."""
LOADING = "loading the model"
CONNECT_S = 0.2
SUBMISSION_LINES = 20
"""The number of lines of the submission in which its warnings are looked for: they are its last words but one."""
REASONS = 3
"""The number of reasons that the end of a run names."""
INDENT, INDENT_OF_INDENTED = 2, 6
"""The columns at which a wrapped line of the result goes on."""
LOGGED = {"PYTHONUNBUFFERED": "1", "TQDM_DISABLE": "1"}
"""Variables of roles whose output goes to a log: each line is there at once, and no progress bar fills it."""
STALL_MARGIN_S = 60.0
"""The roles' own deadlines pass first by this margin: their errors name the cause more precisely."""


def run(path: Path) -> int:
    """Runs all roles. Returns the exit code: `DONE` if every prompt was trained, `HOPELESS` if some died, `AGAIN` for a
    broken identity, `STOPPED` for a run that was stopped. Raises `HopelessError` if the first prompts all die.
    """
    with collection.paused():
        config, problems, warnings = examine(path)
    if config is None or problems:
        raise ConfigError(*problems)
    print_problems(warnings, sign=WARNING)
    if (end := outcome.read(config)) and end.finished and config.prompts.set in (end.sets or (config.prompts.set,)):
        _print_finished(config, end)
        return DONE
    environ = {**ENVIRONMENT, **LOGGED, **os.environ, "ECHO_QUEUE_CONFIG": str(path.resolve())}
    with Supervisor(config.run.dir, environ, forked_with=FORKED_WITH if _forks(config) else "") as roles:
        outcome.forget(config)
        before = {number: signal.signal(number, roles.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            found = Pipeline(config, path, roles).run()
        except KeyboardInterrupt:
            _print_stopping()
            roles.stop_all_but_servers()
            _keep_answers(config)
            roles.stop_all()
            _print_stopped(path)
            return STOPPED
        except EchoQueueError:
            roles.stop_all_but_servers()
            _keep_answers(config)
            raise
        finally:
            roles.stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)
    return _conclude(config, found, path)


class End(NamedTuple):
    """The queue's answers at the end of a run. `dead`: why prompts died, the commonest reason first; `sets`: the digest
    of each set's prompts."""

    audit: Audit
    status: Status
    dead: Sequence[DeadCause]
    sets: Mapping[str, str]

    @classmethod
    def of(cls, config: Config) -> Self:
        queue = monitor(config)
        return cls(queue.audit(), queue.status(), causes(queue.dead(LOOKED_AT)), queue.digests())


class Pipeline:
    """The phases of a run, in order; every role is kept alive meanwhile."""

    def __init__(self, config: Config, path: Path, roles: Supervisor) -> None:
        self.config = config
        self.path = path
        self.roles = roles
        self.deadline_s = config.queue.stall_deadline_s + STALL_MARGIN_S
        self._to_start = list(workers(config, path))
        self._workers = [role.name for role in self._to_start]
        self._submits = self._told = False

    def run(self) -> End:
        """Runs all phases. Returns what the queue said of the finished run, while its services still answered."""
        config, roles = self.config, self.roles
        with RunWatcher(config) as watcher, Screen(watcher, roles) as screen:
            watcher.expect_within(LOADING_S)
            screen.phase("starting the services")
            early = self._nothing_has_died()
            roles.start(*services(config, self.path))
            if early:
                self._start_main_roles()
            elif config.model.base == "init":
                roles.start(Role("init-model", tuple(command("learner.base_model", self.path)), ends=True))
            self._wait(screen, self._services_answer, SERVICES_DEADLINE_S, "services")
            if not early and _all_died_of_other_prompts(config):
                self._begin_anew(screen)
            screen.redis_cli = monitor_line(config)
            roles.start(celery(config))
            if config.model.base == "init":
                watcher.expect_within(BASE_MODEL_DEADLINE_S)
                screen.phase("making the base model", role="init-model")
                self._wait(screen, lambda: roles.done("init-model"), BASE_MODEL_DEADLINE_S, "base model")
            watcher.expect_within(LOADING_S)
            screen.phase(LOADING)
            if not early:
                self._declare_further_set(screen)
                self._try_dead_again(screen)
                self._start_main_roles()
            try:
                watcher.refresh()
                self._wait(screen, lambda: watcher.status is not None, LEARNER_DEADLINE_S, "learner")
                self._start_submission()
                while not (roles.done("learner") and roles.done("submit")):
                    if watcher.still_s > self.deadline_s:
                        raise _stalled(watcher)
                    roles.tick()
                    self._tell_of_source(screen)
                    if watcher.workers_came:
                        screen.phase("training")
                        self._start_further_workers()
                    screen.refresh()
            except HopelessError:
                # Instead of the learner's log, which says the same among other lines.
                check_first_groups(monitor(config))
                raise
            self._tell_of_source(screen)
            if config.redis.url == EMBEDDED:
                screen.redis_cli = ""  # it ends with this command
            screen.phase("finishing")
            roles.stop(celery(config).name, *self._workers)
            watcher.refresh()
            screen.refresh()
            return End.of(config)

    def _wait(self, screen: Screen, until: Callable[[], bool], deadline_s: float, what: str) -> None:
        def refresh_and_check() -> bool:
            screen.refresh()
            return until()

        self.roles.wait(refresh_and_check, deadline_s, what)

    def _nothing_has_died(self) -> bool:
        """Returns whether this run begins, with a model that is there: learner and workers may then load at once.

        They wait by themselves for services that are starting. A learner that finds prompts that died would end.
        """
        config = self.config
        begins = config.redis.url == EMBEDDED and not (services_dir(config) / "redis.json").exists()
        return begins and config.model.base != "init"

    def _begin_anew(self, screen: Screen) -> None:
        """Sets the services' data aside, in which nothing is but prompts that died, and starts empty ones."""
        config, roles = self.config, self.roles
        roles.stop(*(role.name for role in services(config, self.path)))
        aside = services_dir(config).with_name(f"services-{datetime.now():%Y%m%d-%H%M%S}")
        failpoints.step("set services aside", lambda: services_dir(config).rename(aside))
        what = f"all prompts of set {config.prompts.set} that were tried died, and {config.prompts.source} has changed"
        screen.tell(f"{what}: the run begins anew with it; what it held before is in {aside}")
        roles.start(*services(config, self.path))
        self._wait(screen, self._services_answer, SERVICES_DEADLINE_S, "services")

    def _declare_further_set(self, screen: Screen) -> None:
        """Has a set that this run does not know declared before the learner begins, which may find the run finished."""
        queue, name = monitor(self.config), self.config.prompts.set
        if begun(queue) and name not in queue.digests():
            self._start_submission()

            def declared() -> bool:
                return self.roles.done("submit") or name in queue.digests()

            self._wait(screen, declared, self.deadline_s, f"the declaration of set {name}")

    def _start_submission(self) -> None:
        if not self._submits:
            self.roles.start(submission(self.config, self.path))
            self._submits = True

    def _tell_of_source(self, screen: Screen) -> None:
        """Shows once, when the submission has ended, what it says of a source that it left as it is."""
        if self._submits and not self._told and self.roles.done("submit"):
            self._told = True
            if warning := warnings_of(self.roles.last_lines("submit", SUBMISSION_LINES)):
                screen.tell(warning)

    def _try_dead_again(self, screen: Screen) -> None:
        """Revives the prompts that died, or failed, before this command was given."""
        if revived := revive_all(self.config, Operator.connect(self.config)):
            are = agreeing(revived, "is", "are")
            screen.tell(f"{counted(revived, 'prompt')} that failed before {are} tried again")

    def _start_main_roles(self) -> None:
        """Starts the learner, and as many workers as can load beside it: each keeps a core busy for seconds."""
        first = max(1, (os.cpu_count() or 1) - 1)
        self.roles.start(learner(self.path), *self._to_start[:first])
        del self._to_start[:first]

    def _start_further_workers(self) -> None:
        self.roles.start(*self._to_start)
        self._to_start.clear()

    def _services_answer(self) -> bool:
        try:
            monitor(self.config)
            connect_store(self.config, deadline_s=CONNECT_S)
        except ServiceError:
            return False
        return True


def services(config: Config, path: Path) -> Iterator[Role]:
    """Yields the role that keeps the embedded servers, unless both services are external."""
    if EMBEDDED in (config.redis.url, config.store.url):
        yield Role("services", (*_ECHO_QUEUE, "services", str(path)), grace_s=20.0, servers=True)


def celery(config: Config) -> Role:
    """Returns one Celery worker; its child processes are in its process group and end with it."""
    options = ("--concurrency", str(config.submission.processes), "--loglevel", "INFO")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    return Role("celery", (sys.executable, "-m", "celery", "-A", "echo_queue.submission", "worker", *options, *quiet))


def submission(config: Config, path: Path) -> Role:
    """Returns the role that submits the configured prompts, and ends."""
    return Role("submit", (*_ECHO_QUEUE, "submit", str(path), "--within-run"), ends=True)


def workers(config: Config, path: Path) -> Iterator[Role]:
    """Yields the rollout workers, each on its own GPU where there are enough, and with a port of its own."""
    for place in of_run(config):
        variables = tuple(place.variables())
        program = (*(("env", *variables) if variables else ()), *command("workers", path, "--name", place.name))
        yield Role(place.name, program, grace_s=config.rollout.grace_s + 5, ends=True, forked=not variables)


def learner(path: Path) -> Role:
    """Returns the learner."""
    return Role("learner", tuple(command("learner", path)), grace_s=60.0, ends=True, forked=True)


def _forks(config: Config) -> bool:
    """Returns whether learner and workers import the same packages; vLLM starts processes in ways of its own."""
    return config.rollout.engine == "transformers"


_ECHO_QUEUE = (sys.executable, "-m", "echo_queue.cli")


def begun(queue: Monitor) -> bool:
    """Returns whether a learner has begun this run."""
    try:
        return queue.figures().learner.lineage > 0
    except ServiceError:  # no services have made the run yet
        return False


def _all_died_of_other_prompts(config: Config) -> bool:
    """Returns whether all that the run holds are prompts of the configured set, of which every one that was tried died,
    while the set's source holds other prompts by now. Servers of the user's own are left as they are.
    """
    if not EMBEDDED == config.redis.url == config.store.url:
        return False
    queue = monitor(config)
    if not begun(queue):
        return False
    status, sets = queue.figures(), queue.digests()
    made = status.counts.get("completed", 0) or status.trained
    if made or not status.dead or list(sets) != [config.prompts.set]:
        return False
    return changed_source(config, sets[config.prompts.set])


def warnings_of(printed: str) -> str:
    """Returns the warnings among the lines that a role printed: each begins with its sign, and goes on indented."""
    told: list[str] = []
    for line in printed.splitlines():
        if line.startswith(WARNING[0]) or (told and line.startswith(" ")):
            told.append(line)
    return "\n".join(told)


def _keep_answers(config: Config) -> None:
    """Keeps what the queue says of a run that ends before its end, if it answers, for those who ask later."""
    with suppress(EchoQueueError, OSError):
        end = End.of(config)
        updates = metrics.summarise(metrics.read(config.run.dir / "metrics.jsonl")).updates
        outcome.write(config, updates, end.audit, end.status, dead=end.dead, sets=end.sets, early=True)


def _conclude(config: Config, end: End, path: Path) -> int:
    """Writes the report and the outcome, and prints the result of the run. Returns the exit code."""
    found = end.audit
    updates = metrics.read(config.run.dir / "metrics.jsonl")
    page = results.write(config, updates, identity=found.ok, dead=found.dead)
    console = Console(highlight=False)
    summary = metrics.summarise(updates)
    outcome.write(config, summary.updates, found, end.status, dead=end.dead, sets=end.sets)
    console.print()
    for line in _result(config, end, summary, path):
        print_wrapped(console, Text.from_markup(line), INDENT_OF_INDENTED if line.startswith(" ") else INDENT)
    _print_paths(console, config, page)
    return AGAIN if not found.ok else HOPELESS if found.dead else DONE


def _result(config: Config, end: End, summary: metrics.Summary, path: Path) -> Iterator[str]:
    """Yields the lines of the result."""
    name = escape(config.run.name)
    if summary.updates:
        yield f"[bold]{name}[/]: reward [bold green]{rewards(summary)}[/]"
        yield _figures_line(config, summary)
    else:
        yield f"[bold]{name}[/]: [red]nothing was trained[/]; the model is the base model"
    yield sentence(end.audit)
    if end.audit.dead:
        yield from _dead_lines(end, path)
    if warning := metrics.warning(summary, over=True):
        yield f"[yellow]![/] {warning}"
        if summary.flat_updates == summary.updates:
            anew = f"mend that and {_from_scratch(config)}; `echo-queue run {path}` begins anew"
            yield f"    → {escape(anew)}"
    yield _weights_line(summary)


def _figures_line(config: Config, summary: metrics.Summary) -> str:
    return (
        f"whole run: {counted(summary.updates, 'update')}, {duration(summary.seconds)} from the first to the last; "
        f"mean lag {summary.mean_lag:.2f} (of tokens {summary.token_lag:.2f}, largest {summary.max_lag}, bound "
        f"{config.staleness.s}); learner idle {summary.idle_share:.0%}"
    )


def _dead_lines(end: End, path: Path) -> Iterator[str]:
    """Yields how many prompts died, of what, and what to do."""
    yield f"[red]✗[/] {counted(end.audit.dead, 'prompt', 'died and is', 'died and are')} not in the model:"
    for cause in end.dead[:REASONS]:
        yield f"    {cause.tasks:,}× {escape(cause.reason)}  (for example {escape(cause.example)})"
    if more := len(end.dead[REASONS:]):
        them = agreeing(more, "it", "them")
        yield f"    {counted(more, 'more reason')}: redis-cli shows {them}, docs/operations.md says how"
    them = agreeing(end.audit.dead, "it", "them")
    yield f"    → fix that; `echo-queue run {escape(str(path))}` then tries {them} again"


def _weights_line(summary: metrics.Summary) -> str:
    stored = summary.anchor_bytes + summary.delta_bytes
    return (
        f"weights: {short(stored)}B stored, {summary.delta_bytes / max(stored, 1):.0%} as differences; "
        f"workers read {short(summary.store_bytes)}B from the store, {short(summary.peer_bytes)}B from one another"
    )


def _stalled(watcher: RunWatcher) -> DeadlineError:
    what = f"no task moved for {watcher.still_s:.0f} s: {'; '.join(watcher.held_up)}"
    return DeadlineError(Problem("run", what, "read logs/ and docs/operations.md, then run again: it continues"))


def _print_paths(console: Console, config: Config, page: Path) -> None:
    console.print(f"  model    {config.run.dir / 'model'}")
    console.print(f"  report   {page}")
    console.print(f"  metrics  {config.run.dir / 'metrics.jsonl'}")


def _print_finished(config: Config, end: outcome.Outcome) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[bold]{config.run.name}[/] is finished: {counted(end.updates, 'update')}, {end.ended:%Y-%m-%d %H:%M} UTC"
    )
    _print_paths(console, config, config.run.dir / "report.html")
    console.print(f"  To run it again from scratch, {_from_scratch(config)}.")
    if (digest := end.sets.get(config.prompts.set)) and changed_source(config, digest):
        print_problems([left_as_it_is(config, "it has changed since")], sign=WARNING)


def _from_scratch(config: Config) -> str:
    """Returns what to do before a run begins anew."""
    embedded = EMBEDDED == config.redis.url == config.store.url
    return f"remove {config.run.dir}" if embedded else "name another run.name and run.dir"


def _print_stopping() -> None:
    what = "stopping: the learner saves a checkpoint and workers hand their tasks back; Ctrl-C again kills them"
    Console(stderr=True, highlight=False).print(what)


def _print_stopped(path: Path) -> None:
    Console(stderr=True, highlight=False).print(f"stopped; `echo-queue run {path}` continues it")
