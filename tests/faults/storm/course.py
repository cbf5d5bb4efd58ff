"""A storm from its beginning to its end: everybody starts, it rages, it calms, the run drains, and is judged."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.faults.history.checker import Verdict, judge
from tests.faults.storm import looking, roles
from tests.faults.storm.looking import Onlooker
from tests.faults.storm.processes import Processes
from tests.faults.storm.raging import Raging
from tests.faults.storm.settings import configure, in_words
from tests.faults.storm.tally import Tally

BEGIN_S = 60.0
PATIENCE_S = 150.0
"""How long the end is waited for, so that a slow one is told apart from one that never comes."""
PAUSE_S = 0.05


class Storm:
    """One storm in `directory`."""

    def __init__(self, directory: Path, seed: int, duration_s: float) -> None:
        self.directory, self.seed, self.duration_s = directory, seed, duration_s
        self.config = configure(directory, seed)
        self._processes = Processes(directory)
        self._onlooker = Onlooker(directory, self.config)
        self._raging = Raging(self._processes, self._onlooker, seed)

    def run(self) -> tuple[Tally, Verdict]:
        try:
            return self._run()
        finally:
            self._processes.end()

    def _run(self) -> tuple[Tally, Verdict]:
        began = time.monotonic()
        self._begin()
        raging_from = time.time()
        self._raging.rage(self.duration_s)
        self._raging.kill_the_spared()
        raged_s = (raging_from, time.time())
        self._processes.wake()
        (self.directory / roles.CLOSING).touch()
        drained_s = self._drained()
        tally = Tally(
            seed=self.seed,
            rules=in_words(self.config),
            seconds=time.monotonic() - began,
            kills=self._raging.kills,
            stops=self._raging.stops,
            done=self._raging.done,
            drained_s=drained_s,
            surprises=self._processes.unexpected + looking.surprises(self.directory),
            raged_s=raged_s,
        )
        return tally, judge(self._onlooker.evidence())

    def _begin(self) -> None:
        self._processes.tend()
        self._processes.watch()
        self._await(lambda: self._onlooker.admin() is not None, BEGIN_S, "the services")
        self._onlooker.declare_keel()
        self._await(self._trains, BEGIN_S, "the first commit")

    def _trains(self) -> bool:
        status = self._onlooker.status()
        return status is not None and status.trained > 0

    def _finished(self) -> bool:
        status = self._onlooker.status()
        return status is not None and status.finished

    def _drained(self) -> float | None:
        """Seconds from the last kill to the run's end; None if that never came."""
        with suppress(TimeoutError):
            self._await(self._finished, PATIENCE_S, "the end")
            return time.monotonic() - self._processes.last_kill
        return None

    def _await(self, true: Callable[[], bool], deadline_s: float, what: str) -> None:
        give_up = time.monotonic() + deadline_s
        while not true():
            if time.monotonic() > give_up:
                raise TimeoutError(f"{what} did not come within {deadline_s:.0f} s; see {self.directory}")
            self._processes.tend()
            time.sleep(PAUSE_S)
