"""A storm from its beginning to its end: all roles start, faults are injected, the run finishes, and is judged."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from echo_queue.connections.connect import connect_store
from echo_queue.queue.payloads import PARTIALS
from tests.faults.history.checker import Verdict, judge
from tests.faults.storm import fleet, observer, roles
from tests.faults.storm.containers import WorkerContainers
from tests.faults.storm.fault_injection import FaultInjector
from tests.faults.storm.observer import StormObserver
from tests.faults.storm.processes import Processes
from tests.faults.storm.settings import WORKERS, configure, in_words
from tests.faults.storm.summary import StormSummary

BEGIN_S = 150.0
"""The longest wait for the services, and for the first update."""
PATIENCE_S = 150.0
"""The longest wait for the end, so that a slow end can be distinguished from one that never comes."""
CLEAR_S = 15.0
PAUSE_S = 0.05


class Storm:
    """One storm in `directory`. `contained`: its workers are containers."""

    def __init__(
        self, directory: Path, seed: int, duration_s: float, ranks: int | None = None, contained: bool = False
    ) -> None:
        self.directory, self.seed, self.duration_s = directory, seed, duration_s
        self.config = configure(directory, seed, ranks)
        self._containers = WorkerContainers(directory) if contained else None
        self._processes = Processes(directory, self._containers)
        self._observer = StormObserver(directory, self.config)
        self._injector = FaultInjector(self._processes, self._observer, seed, contained)

    def run(self) -> tuple[StormSummary, Verdict]:
        try:
            return self._run()
        finally:
            self._processes.end()

    def _run(self) -> tuple[StormSummary, Verdict]:
        began = time.monotonic()
        self._begin()
        injecting_from = time.time()
        self._injector.inject(self.duration_s)
        self._injector.kill_the_spared()
        injected_s = (injecting_from, time.time())
        self._processes.wake()
        (self.directory / roles.CLOSING).touch()
        drained_s = self._drained()
        summary = StormSummary(
            seed=self.seed,
            rules=in_words(self.config),
            seconds=time.monotonic() - began,
            kills=self._injector.kills,
            learners=self._injector.learners,
            stops=self._injector.stops,
            done=self._injector.done,
            drained_s=drained_s,
            surprises=self._processes.unexpected + observer.surprises(self.directory),
            injected_s=injected_s,
            left_behind=self._left_behind(),
            machines_left=self._machines_left(),
        )
        return summary, judge(self._observer.evidence())

    def _begin(self) -> None:
        fleet.write_file(self.directory, random.Random(f"fleet {self.seed}"))
        self._processes.tend()
        self._processes.watch()
        self._await(lambda: self._observer.admin() is not None, BEGIN_S, "the services")
        if self._containers:
            self._containers.start(*WORKERS)
        self._observer.declare_final_set()
        self._await(self._trains, BEGIN_S, "the first commit")

    def _trains(self) -> bool:
        status = self._observer.status()
        return status is not None and status.trained > 0

    def _finished(self) -> bool:
        status = self._observer.status()
        return status is not None and status.finished

    def _drained(self) -> float | None:
        """Seconds from the last kill to the run's end; None if that never came."""
        with suppress(TimeoutError):
            self._await(self._finished, PATIENCE_S, "the end")
            return time.monotonic() - self._processes.last_kill
        return None

    def _left_behind(self) -> int:
        """Objects of partial rollouts that the learner, which has finished the run, does not remove."""
        store = connect_store(self.config)
        with suppress(TimeoutError):
            self._await(lambda: not any(store.list(PARTIALS)), CLEAR_S, "the removal of partial rollouts")
        return sum(1 for _ in store.list(PARTIALS))

    def _machines_left(self) -> int:
        """Machines of the fleet that its controllers do not end, although the run is finished."""
        with suppress(TimeoutError):
            self._await(lambda: not any(fleet.alive(self.directory)), CLEAR_S, "the end of the fleet")
        return sum(1 for _ in fleet.alive(self.directory))

    def _await(self, true: Callable[[], bool], deadline_s: float, what: str) -> None:
        give_up = time.monotonic() + deadline_s
        while not true():
            if time.monotonic() > give_up:
                raise TimeoutError(f"{what} did not come within {deadline_s:.0f} s; see {self.directory}")
            self._processes.tend()
            time.sleep(PAUSE_S)
