"""`echo-queue run`: all roles of a configuration on this machine, from an empty directory to a trained model.

- All problems are reported before any process starts.
- A run that was stopped or killed, at any moment, continues; a finished run is left as it is. Prompts that died are
  tried again by the next `run`: then their cause may be fixed.
- No phase lasts for ever: each wait has a deadline whose error names the thing that it waited for.
"""

import os
import signal
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from echo_queue import failpoints
from echo_queue.cli.inspect.dead_tasks import revive_all
from echo_queue.cli.inspect.live.screen import Screen
from echo_queue.cli.inspect.live.watcher import OPEN, RunWatcher, monitor
from echo_queue.cli.redis_cli import monitor_line
from echo_queue.cli.run.config import examine
from echo_queue.cli.run.end import End, conclude, keep_answers, print_finished, print_stopped, print_stopping
from echo_queue.cli.run.placement import ENVIRONMENT
from echo_queue.cli.run.roles import base_model, celery, learner, services, submission, workers
from echo_queue.config import Config, Prompts
from echo_queue.connections.connect import connect_store
from echo_queue.connections.endpoints import EMBEDDED, services_dir
from echo_queue.errors import (
    DONE,
    STOPPED,
    ConfigError,
    DeadlineError,
    EchoQueueError,
    HopelessError,
    Problem,
    ServiceError,
)
from echo_queue.launch import collection
from echo_queue.launch.problem_output import WARNING, print_problems
from echo_queue.launch.signals import ending
from echo_queue.launch.supervisor import Role, Supervisor
from echo_queue.queue import Monitor, Operator
from echo_queue.queue.counts import agreeing, counted
from echo_queue.queue.dead_causes import check_first_groups
from echo_queue.reporting import outcome
from echo_queue.submission.configured_sets import trained_sets
from echo_queue.submission.declaration import changed_source

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
    if (end := outcome.read(config)) and _nothing_is_left(config, end):
        print_finished(config, end)
        return DONE
    environ = {**ENVIRONMENT, **LOGGED, **os.environ, "ECHO_QUEUE_CONFIG": str(path.resolve())}
    with Supervisor(config.run.dir, environ) as roles:
        outcome.forget(config)
        before = {number: signal.signal(number, roles.interrupt) for number in ending()}
        try:
            found = Pipeline(config, path, roles).run()
        except KeyboardInterrupt:
            keep_answers(config)
            roles.stop_all()
            print_stopped(path)
            return STOPPED
        except EchoQueueError:
            keep_answers(config)
            raise
        finally:
            roles.stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)
    return conclude(config, found, path)


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
        """Runs all phases. Returns what the queue said of the finished run, while its services still answered.

        After an error, and after a signal, no role but the servers is left.
        """
        with RunWatcher(self.config) as watcher, Screen(watcher, self.roles) as screen:
            try:
                return self._train(watcher, screen)
            except KeyboardInterrupt:
                print_stopping(screen.stderr)
                self._stop(watcher, screen, "stopped")
                raise
            except Exception:
                self._stop(watcher, screen, "failed")
                raise

    def _stop(self, watcher: RunWatcher, screen: Screen, phase: str) -> None:
        """Stops all roles but the servers, and has the picture that stays show the run as it is then."""
        screen.phase("stopping")
        self.roles.stop_all_but_servers()
        if self.config.redis.url == EMBEDDED:
            screen.redis_cli = ""  # it ends with this command
        watcher.refresh()
        screen.end(phase, self._workers)

    def _train(self, watcher: RunWatcher, screen: Screen) -> End:
        config, roles = self.config, self.roles
        watcher.expect_within(LOADING_S)
        screen.phase("starting the services")
        early = self._nothing_has_died()
        roles.start(*services(config, self.path))
        if early:
            self._start_main_roles()
        elif config.model.base == "init":
            roles.start(base_model(self.path))
        self._wait(screen, self._services_answer, SERVICES_DEADLINE_S, "services")
        if not early and (changed := _changed_since_all_died(config)):
            self._begin_anew(screen, changed)
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
            self._go_on_beyond_limit(screen)
            self._start_main_roles()
        try:
            watcher.refresh()
            self._wait(screen, lambda: watcher.status is not None, LEARNER_DEADLINE_S, "learner")
            self._start_submission()
            while not (roles.done("learner") and roles.done("submit")):
                if watcher.still_s > self.deadline_s and not watcher.waits_for_prompts:
                    raise _stalled(watcher)
                self._tick()
                self._tell_of_source(screen)
                if watcher.workers_came:
                    screen.phase(OPEN if watcher.waits_for_prompts else "training")
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
        end = End.of(config)
        screen.end("finished" if end.audit.ok else "failed", self._workers)
        return end

    def _wait(self, screen: Screen, until: Callable[[], bool], deadline_s: float, what: str) -> None:
        def refresh_and_check() -> bool:
            screen.refresh()
            return until()

        self.roles.wait(refresh_and_check, deadline_s, what)

    def _tick(self) -> None:
        """Keeps the roles alive. A learner that has finished says by its exit code that prompts died, as `run` will."""
        try:
            self.roles.tick()
        except HopelessError:
            if not self._is_finished():
                raise

    def _nothing_has_died(self) -> bool:
        """Returns whether this run begins, with a model that is there: learner and workers may then load at once.

        They wait by themselves for services that are starting. A learner that finds prompts that died would end.
        """
        config = self.config
        begins = config.redis.url == EMBEDDED and not (services_dir(config) / "redis.json").exists()
        return begins and config.model.base != "init"

    def _begin_anew(self, screen: Screen, changed: Prompts) -> None:
        """Sets the services' data aside, in which nothing is but prompts that died, and starts empty ones."""
        config, roles = self.config, self.roles
        roles.stop(*(role.name for role in services(config, self.path)))
        aside = services_dir(config).with_name(f"services-{datetime.now():%Y%m%d-%H%M%S}")
        failpoints.step("set services aside", lambda: services_dir(config).rename(aside))
        died = "all prompts" if config.mixture else f"all prompts of set {changed.set}"
        what = f"{died} that were tried died, and {changed.source} has changed"
        screen.tell(f"{what}: the run begins anew with it; what it held before is in {aside}")
        roles.start(*services(config, self.path))
        self._wait(screen, self._services_answer, SERVICES_DEADLINE_S, "services")

    def _declare_further_set(self, screen: Screen) -> None:
        """Has a set that this run does not know declared before the learner begins, which may find the run finished.

        A component may be new to a run that is not finished: then only that learner can bring it. The submission, which
        reads the prompts meanwhile, waits for it.
        """
        queue, names = monitor(self.config), {prompts.set for prompts in trained_sets(self.config)}
        if not begun(queue) or not (further := names - queue.digests().keys()):
            return
        sets = f"{'set' if len(further) == 1 else 'sets'} {', '.join(sorted(further))}"
        self._start_submission()
        if not self.config.mixture or self._is_finished():

            def declared() -> bool:
                return self.roles.done("submit") or further <= queue.digests().keys()

            self._wait(screen, declared, self.deadline_s, f"the declaration of {sets}")
        run, learner = self.config.run, queue.figures().learner
        goes_on = f"run {run.name} goes on from version {learner.number} with the prompts of {sets}"
        screen.tell(f"{goes_on}; a run of its own needs another run.name and run.dir")

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
        self.roles.start(*self._learner(), *self._to_start[:first])
        del self._to_start[:first]

    def _learner(self) -> Iterator[Role]:
        """Yields the learner's role, unless it is started already."""
        if not self.roles.knows("learner"):
            yield learner(self.path, self._is_finished)

    def _go_on_beyond_limit(self, screen: Screen) -> None:
        """Starts the learner of a run that a lower learner.max_updates had ended, and waits until it is open again.

        A worker that is started before that leaves at once.
        """
        queue, limit = monitor(self.config), self.config.learner.max_updates
        if begun(queue) and (found := queue.figures()).ended_before(limit):
            ended = f"the run had ended at update {found.learner.number}, by learner.max_updates"
            screen.tell(f"{ended}; it goes on {f'to update {limit}' if limit else 'until all prompts are trained'}")
            self.roles.start(*self._learner())
            self._wait(screen, lambda: not self._is_finished(), LEARNER_DEADLINE_S, "learner")

    def _start_further_workers(self) -> None:
        self.roles.start(*self._to_start)
        self._to_start.clear()

    def _is_finished(self) -> bool:
        """Returns whether the learner has marked the run finished."""
        try:
            return monitor(self.config).status().finished
        except ServiceError:
            return False

    def _services_answer(self) -> bool:
        try:
            monitor(self.config)
            connect_store(self.config, deadline_s=CONNECT_S)
        except ServiceError:
            return False
        return True


def _nothing_is_left(config: Config, end: outcome.Outcome) -> bool:
    """Returns whether the run is finished, with all of these sets, and under this learner.max_updates."""
    known = not end.sets or {prompts.set for prompts in trained_sets(config)} <= end.sets.keys()
    return end.finished and known and not end.status.ended_before(config.learner.max_updates)


def begun(queue: Monitor) -> bool:
    """Returns whether a learner has begun this run."""
    try:
        return queue.figures().learner.lineage > 0
    except ServiceError:  # no services have made the run yet
        return False


def _changed_since_all_died(config: Config) -> Prompts | None:
    """Returns a configured set whose source holds other prompts by now, if all that the run holds are prompts of the
    configured sets, of which every one that was tried died. Servers of the user's own are left as they are.
    """
    if not EMBEDDED == config.redis.url == config.store.url:
        return None
    queue = monitor(config)
    if not begun(queue):
        return None
    status, sets = queue.figures(), queue.digests()
    made = status.counts.get("completed", 0) or status.trained
    trained = {name for name in sets if config.evaluation_of(name) is None}
    configured = {prompts.set: prompts for prompts in trained_sets(config)}
    if made or not status.dead or trained != configured.keys():
        return None
    changed = (one for name, one in configured.items() if changed_source(config, one, sets[name]))
    return next(changed, None)


def warnings_of(printed: str) -> str:
    """Returns the warnings among the lines that a role printed: each begins with its sign, and goes on indented."""
    told: list[str] = []
    for line in printed.splitlines():
        if line.startswith(WARNING[0]) or (told and line.startswith(" ")):
            told.append(line)
    return "\n".join(told)


def _stalled(watcher: RunWatcher) -> DeadlineError:
    what = f"no task moved for {watcher.still_s:.0f} s: {'; '.join(watcher.held_up)}"
    return DeadlineError(Problem("run", what, "read logs/ and docs/operations.md, then run again: it continues"))
