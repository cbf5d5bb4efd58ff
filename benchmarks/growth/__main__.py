"""`python -m benchmarks.growth`: see the package."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.growth import aged
from benchmarks.growth.aged import KEPT, SET, Age
from benchmarks.verdict import conclude
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.errors import EchoQueueError
from echo_queue.queue import Caller, Monitor, Operator, SubmitterQueue
from echo_queue.queue.orphans import Sweeper
from echo_queue.services.serving import Services
from echo_queue.storage.object_store import ObjectStore
from learner.recovery import archive, checkpoint
from tests.waiting import wait_until

DEAD = 2_000
LIMIT_S, DEADLINE_S = 10.0, 900.0
ECHO_QUEUE = (sys.executable, "-m", "echo_queue.cli")


@dataclass(frozen=True)
class Figures:
    """Seconds, each from the start of a process, or of a call, until it has done its part."""

    age: Age
    redis_lost_s: float
    """A learner and a submission, until Redis knows all that is trained and has handed new tasks out."""
    redis_lost_learner_s: float
    """The learner's part of it, until its lineage has weights that workers may fetch."""
    learner_s: float
    """A learner whose Redis stands where it stood."""
    worker_s: float
    """A worker, until it has leased a task."""
    services_s: float
    """Redis and store, until both answer."""
    housekeeper_s: float
    """One sweep, orphans included."""
    status_s: float
    report_s: float
    young_learner_s: float
    """A learner in a run without a past."""
    young_worker_s: float
    prune_s: float
    """What a save spends on older checkpoints."""
    checkpoint_objects: int
    redis_bytes: int
    metrics_bytes: int
    dead_bytes: int
    """Bytes of Redis per dead task, of which the first thousand have a traceback of 4 kB."""


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


def measure(age: Age, directory: Path) -> Figures:
    young_learner_s, young_worker_s = young(directory / "young")
    run = Run(directory / "old", "old")
    try:
        newest = aged.store_history(run.config, run.store, age)
        aged.write_metrics(run.config, age)
        lost_learner_s, lost_s, dead_bytes, worker_s = _lose_redis(run, age)
        lineage = run.lineage
        learner_s = _start_learner(run, lambda: run.lineage > lineage and run.serves())
        housekeeper_s = _timed(lambda: sweep(run))
        run.services.stop()
        services_s = _timed(run.services.start)
        if not (audit := run.monitor.audit()).ok:
            raise SystemExit(f"the identity is broken: {audit}")
        return Figures(
            age=age,
            redis_lost_s=lost_s,
            redis_lost_learner_s=lost_learner_s,
            learner_s=learner_s,
            worker_s=worker_s,
            services_s=services_s,
            housekeeper_s=housekeeper_s,
            status_s=_timed(lambda: _command("status", run.path)),
            report_s=_timed(lambda: _command("report", run.path)),
            young_learner_s=young_learner_s,
            young_worker_s=young_worker_s,
            prune_s=_timed(lambda: checkpoint.prune(run.store, newest, KEPT)),
            checkpoint_objects=len(archive.keys(run.store)),
            redis_bytes=run.used_bytes(),
            metrics_bytes=(run.config.run.dir / "metrics.jsonl").stat().st_size,
            dead_bytes=dead_bytes,
        )
    finally:
        run.services.stop()


def young(directory: Path) -> tuple[float, float]:
    """Returns the seconds until a learner and a worker of a run without a past have begun."""
    run = Run(directory, "young")
    try:
        prompts = aged.store_prompts(run.store, Age(0, 0, 0))
        begun = time.monotonic()
        with _role("learner", run.path):
            _await(lambda: run.lineage > 0 and run.serves(), "a first learner")
            learner_s = time.monotonic() - begun
            aged.submit(SubmitterQueue(run.caller), prompts)
            return learner_s, _start_worker(run)
    finally:
        run.services.stop()


def _lose_redis(run: Run, age: Age) -> tuple[float, float, int, float]:
    """Lets a learner find an empty Redis, and submits the set again.

    Returns the seconds until its lineage serves weights, and until there are new tasks; then the bytes of a dead task,
    and the seconds of a worker's start.
    """
    prompts = aged.store_prompts(run.store, age)
    begun = time.monotonic()
    with _role("learner", run.path):
        _await(lambda: run.lineage > 0, "the run rules")
        aged.submit(SubmitterQueue(run.caller), prompts)
        _await(run.serves, "the learner, whose Redis was lost")
        learner_s = time.monotonic() - begun
        _await(lambda: _passed(run, age), "tasks beyond what is trained")
        lost_s = time.monotonic() - begun
        aged.note_lengths(run.redis, run.config.run.name, age)
        return learner_s, lost_s, bury(run, age), _start_worker(run)


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


def _start_learner(run: Run, begun: Callable[[], bool]) -> float:
    started = time.monotonic()
    with _role("learner", run.path):
        _await(begun, "the learner")
        return time.monotonic() - started


def _start_worker(run: Run) -> float:
    leased, started = run.leased(), time.monotonic()
    with _role("workers", run.path, "--name", "w1"):
        _await(lambda: run.leased() > leased, "the worker's first task")
        return time.monotonic() - started


def _timed(action: Callable[[], object]) -> float:
    begun = time.monotonic()
    action()
    return time.monotonic() - begun


def _await(until: Callable[[], bool], what: str) -> None:
    wait_until(until, what, DEADLINE_S)


def _command(command: str, path: Path) -> None:
    subprocess.run([*ECHO_QUEUE, command, str(path)], check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)


@contextmanager
def _role(module: str, path: Path, *words: str) -> Iterator[None]:
    """Runs a role's process meanwhile. It is killed at the end: every start here comes after a crash."""
    with path.with_name(f"{module}.log").open("ab") as log:
        command = [sys.executable, "-m", module, str(path), *words]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
        if process.poll() is not None:
            raise SystemExit(f"{module} ended: see {path.with_name(module)}.log")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Times what might grow with a run's age.")
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--checkpoints", type=int, default=3_125)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    age = Age(arguments.prompts, arguments.updates, arguments.checkpoints)
    with tempfile.TemporaryDirectory(prefix="echo-queue-growth-") as directory:
        found = measure(age, Path(directory))
    print(f"{age.prompts:,} trained prompts, {age.updates:,} updates, {age.checkpoints:,} checkpoints")
    times = {name.removesuffix("_s"): value for name, value in vars(found).items() if name.endswith("_s")}
    for name, value in times.items():
        print(f"  {name.replace('_', ' '):20} {value:8.2f} s")
    print(
        f"  {found.checkpoint_objects} objects under checkpoints/, {found.redis_bytes / 2**20:.0f} MiB of Redis, ",
        end="",
    )
    print(f"{found.metrics_bytes / 2**20:.0f} MiB of metrics, {found.dead_bytes} bytes per dead task")
    targets = {f"{name.replace('_', ' ')} ≤ {LIMIT_S:.0f} s": value <= LIMIT_S for name, value in times.items()}
    return conclude(found, targets, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
