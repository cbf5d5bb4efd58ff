"""`python -m benchmarks.growth`: see the package."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.growth import aged
from benchmarks.growth.aged import KEPT, SET, Age
from benchmarks.rows import Rows
from benchmarks.verdict import conclude
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError
from echo_queue.launch.servers.serving import Services
from echo_queue.queue import Caller, Monitor, Operator, SubmitterQueue
from echo_queue.queue.orphans import Sweeper
from learner.recovery import archive, checkpoint
from tests.processes import process_stat

DEAD, PREFIX = 2_000, "echo-queue-growth-"
YOUNG = "in a run without a past: "
LIMIT_S, DEADLINE_S, POLL_S = 10.0, 900.0, 0.05
ECHO_QUEUE = (sys.executable, "-m", "echo_queue.cli")


@dataclass(frozen=True)
class Took:
    """The time of a process from its start, or of a call, until it has done its part; `cpu_s`: of all processors."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Figures:
    """The times that depend on a run's age. `took`: by what was done."""

    age: Age
    took: dict[str, Took]
    checkpoint_objects: int
    redis_bytes: int
    metrics_bytes: int
    dead_bytes: int
    """Bytes of Redis per dead task, of which the first thousand have a traceback of 4 kB."""


class Told(dict[str, Took]):
    """What was timed, by what was done; each is printed at once."""

    def __setitem__(self, name: str, took: Took) -> None:
        super().__setitem__(name, took)
        print(f"  {name:36} {took.wall_s:8.2f} {took.cpu_s:8.2f}", flush=True)


class Run:
    """A run whose services are up, and its clients."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir()
        self.path = aged.configuration(directory, name)
        self.config: Config = load(self.path)
        self.services = Services(self.config)
        self.services.start()
        self.store: ObjectStore = connect_store(self.config, "learner")
        self.redis = connect_redis(self.config, "admin")
        self.caller = Caller(self.redis, name)
        self.monitor, self.operator = Monitor(self.caller), Operator(self.caller)

    @property
    def lineage(self) -> int:
        with suppress(EchoQueueError):
            return self.monitor.status().learner.lineage
        return 0

    def serves(self) -> bool:
        """Says whether workers may fetch weights of the newest lineage."""
        status = self.monitor.status()
        return status.published is not None and status.published.version.lineage == status.learner.lineage

    def leased(self) -> int:
        return self.monitor.status().counts.get("leased", 0)

    def used_bytes(self) -> int:
        """Bytes of Redis."""
        return int(self.redis.info("memory")["used_memory"])


def measure(age: Age, directory: Path, took: Told) -> Figures:
    young(directory / "young", took)
    run = Run(directory / "old", "old")
    try:
        newest = aged.store_history(run.config, run.store, age)
        aged.write_metrics(run.config, age)
        dead_bytes = _lose_redis(run, age, took)
        lineage = run.lineage
        took["learner"] = _start_learner(run, lambda: run.lineage > lineage and run.serves())
        took["housekeeper, one sweep"] = _timed(lambda: sweep(run))
        run.services.stop()
        took["services"] = _timed(run.services.start)
        if not (audit := run.monitor.audit()).ok:
            raise SystemExit(f"the identity is broken: {audit}")
        took["status"] = _timed(lambda: _command("status", run.path))
        took["report"] = _timed(lambda: _command("report", run.path))
        took["pruning, one save"] = _timed(lambda: checkpoint.prune(run.store, newest, KEPT))
        return Figures(
            age=age,
            took=took,
            checkpoint_objects=len(archive.keys(run.store)),
            redis_bytes=run.used_bytes(),
            metrics_bytes=(run.config.run.dir / "metrics.jsonl").stat().st_size,
            dead_bytes=dead_bytes,
        )
    finally:
        run.services.stop()


def young(directory: Path, took: Told) -> None:
    """Times the start of a learner and of a worker of a run without a past."""
    run = Run(directory, "young")
    try:
        prompts = aged.store_prompts(run.store, Age(0, 0, 0))
        with _role("learner", run.path) as learner:
            _await(lambda: run.lineage > 0 and run.serves(), "a first learner")
            took[YOUNG + "learner"] = learner.took()
            aged.submit(SubmitterQueue(run.caller), prompts)
            took[YOUNG + "worker"] = _start_worker(run)
    finally:
        run.services.stop()


def _lose_redis(run: Run, age: Age, took: Told) -> int:
    """Lets a learner find an empty Redis, submits the set again, and starts a worker. Returns a dead task's bytes."""
    prompts = aged.store_prompts(run.store, age)
    with _role("learner", run.path) as learner:
        _await(lambda: run.lineage > 0, "the run rules")
        aged.submit(SubmitterQueue(run.caller), prompts)
        _await(run.serves, "the learner, whose Redis was lost")
        took["learner, Redis lost"] = learner.took()
        _await(lambda: _passed(run, age), "tasks beyond what is trained")
        took["learner and first task, Redis lost"] = learner.took()
        aged.note_lengths(run.redis, run.config.run.name, age)
        dead_bytes = bury(run, age)
        took["worker"] = _start_worker(run)
        return dead_bytes


def _passed(run: Run, age: Age) -> bool:
    audit = run.monitor.audit()
    return audit.trained >= age.prompts and audit.tasks > 0


def bury(run: Run, age: Age) -> int:
    """Buries tasks as an environment does that is broken. Returns the bytes of Redis for each."""
    before, reason = run.used_bytes(), "Traceback … " + "x" * 4_000
    for index in range(age.prompts, age.prompts + DEAD):
        _await(lambda task=f"{SET}/0/{index}": run.operator.bury(task, reason), "a task to bury")  # type: ignore[misc]
    return (run.used_bytes() - before) // DEAD


def sweep(run: Run) -> None:
    """Does what the learner's housekeeper does in one turn, the sweep for orphans included."""
    run.operator.reclaim()
    run.operator.admit()
    run.operator.status()
    Sweeper(run.caller, run.store).sweep()


def _start_learner(run: Run, begun: Callable[[], bool]) -> Took:
    with _role("learner", run.path) as learner:
        _await(begun, "the learner")
        return learner.took()


def _start_worker(run: Run) -> Took:
    leased = run.leased()
    with _role("workers", run.path, "--name", "w1") as worker:
        _await(lambda: run.leased() > leased, "the worker's first task")
        return worker.took()


def _timed(action: Callable[[], object]) -> Took:
    """Times a call, with the processes that it starts and that end in it."""
    begun, cpu_s = time.monotonic(), sum(os.times()[:4])
    action()
    return Took(time.monotonic() - begun, sum(os.times()[:4]) - cpu_s)


def _await(until: Callable[[], bool], what: str) -> None:
    """Asks only now and then, so that the asking does not count."""
    give_up = time.monotonic() + DEADLINE_S
    while not until():
        if time.monotonic() > give_up:
            raise SystemExit(f"waited {DEADLINE_S:.0f} s for {what}")
        time.sleep(POLL_S)


def _command(command: str, path: Path) -> None:
    subprocess.run([*ECHO_QUEUE, command, str(path)], check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)


class RoleProcess:
    """A role's process, from its start on."""

    def __init__(self, command: Sequence[str], log: IO[bytes]) -> None:
        self._begun = time.monotonic()
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def took(self) -> Took:
        """The time since the start."""
        stat = process_stat(self.process.pid)
        assert stat
        ticks = stat.user_ticks + stat.system_ticks
        return Took(time.monotonic() - self._begun, ticks / os.sysconf("SC_CLK_TCK"))


@contextmanager
def _role(module: str, path: Path, *words: str) -> Iterator[RoleProcess]:
    """Runs a role's process meanwhile. It is killed at the end: every start here comes after a crash."""
    with path.with_name(f"{module}.log").open("ab") as log:
        role = RoleProcess([sys.executable, "-m", module, str(path), *words], log)
    try:
        yield role
        if role.process.poll() is not None:
            raise SystemExit(f"{module} ended: see {path.with_name(module)}.log")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(role.process.pid, signal.SIGKILL)
        role.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Times what might grow with a run's age.")
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--checkpoints", type=int, default=3_125)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    age = Age(arguments.prompts, arguments.updates, arguments.checkpoints)
    print(f"{age.prompts:,} trained prompts, {age.updates:,} updates, {age.checkpoints:,} checkpoints: seconds, of CPU")
    rows, took, found = Rows(), Told(), list[Figures]()
    with rows.row("all that a run's age may slow down"), tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
        found.append(one := measure(age, Path(directory), took))
        print(f"  {one.checkpoint_objects} objects under checkpoints/, {one.dead_bytes} bytes of Redis per dead task")
        print(f"  {one.redis_bytes / 2**20:.0f} MiB of Redis, {one.metrics_bytes / 2**20:.0f} MiB of metrics")
    old = {name: one.wall_s for name, one in took.items() if not name.startswith(YOUNG)}
    targets = {f"{name}: ≤ {LIMIT_S:.0f} s": wall_s <= LIMIT_S for name, wall_s in old.items()}
    return conclude(found[0] if found else took, rows.promises | targets, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
