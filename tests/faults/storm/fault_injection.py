"""The faults of a storm: its seed draws which fault, to which role and when; each one is counted."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from echo_queue.errors import EchoQueueError
from tests.faults.storm import fleet
from tests.faults.storm.forked_roles import Process
from tests.faults.storm.observer import StormObserver
from tests.faults.storm.processes import Processes, role_of
from tests.faults.storm.settings import (
    ACTIONS_PER_S,
    IN_CONTAINERS,
    KILLS,
    KILLS_WITH_RANKS,
    LEASE_S,
    POOLS,
    RANK_DEADLINE_S,
    SPOTS,
    STOPS,
    WORKERS,
)
from tests.faults.storm.summary import spared_by

PAUSE_S = 0.01
MAKE_UP_S = 20.0
EVICTED = (*WORKERS, "spot", *POOLS)
"""The beginnings of the names of workers that are evicted."""
JOIN_SHARE = 0.5
"""The share of the draws at which a spot worker may join in which one does."""
REWIND_S = 7.0
"""The seconds for which a rewind stops the learner, since it is refused while a learner is heard."""


class FaultInjector:
    """Injects faults. `kills` and `stops` count by role, `learners` by signal and process of the learner, whose
    launcher and ranks are drawn alike; `done` counts the other faults, each of which has its weight and its method in
    `_others`."""

    def __init__(self, processes: Processes, observer: StormObserver, seed: int, contained: bool = False) -> None:
        self._others: dict[str, tuple[float, Callable[[], None]]] = {
            "rival": (2.0, self._rival),
            "spot": (20.0, self._spot),
            "rewind": (0.8, self._rewind),
            "revive": (0.8, self._revive),
            "restart": (0.5, self._restart),
            "second": (3.0, self._second),
            "demand": (8.0, self._demand),
            "evict": (3.0, self._evict),
        }
        kills = KILLS if observer.config.learner.ranks == 1 else KILLS_WITH_RANKS
        self._often: dict[tuple[str, str], float] = {
            **{("kill", role): often for role, often in kills.items()},
            **{("stop", role): often for role, often in STOPS.items()},
            **{(name, ""): often for name, (often, _) in self._others.items()},
        }
        usual = sum(self._often.values())
        if contained:
            self._often[("kill", "worker")] *= IN_CONTAINERS["worker"]
            self._often[("spot", "")] *= IN_CONTAINERS["spot"]
        self._actions_per_s = ACTIONS_PER_S * sum(self._often.values()) / usual
        self.kills: Counter[str] = Counter()
        self.learners: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._processes = processes
        self._observer = observer
        self._draw = random.Random(seed)

    def inject(self, duration_s: float) -> None:
        until = time.monotonic() + duration_s
        while (at := time.monotonic() + self._draw.expovariate(self._actions_per_s)) <= until:
            while time.monotonic() < at:
                self._processes.tend()
                time.sleep(PAUSE_S)
            self._act()

    def kill_the_spared(self) -> None:
        """Kills the roles that a short storm has left out."""
        give_up = time.monotonic() + MAKE_UP_S
        while (spared := spared_by(self.kills)) and time.monotonic() < give_up:
            self._kill(spared[0], self._draw.random())
            self._processes.tend()
            time.sleep(PAUSE_S)

    def _act(self) -> None:
        action, role = self._draw.choices([*self._often], [*self._often.values()])[0]
        lot, share = self._draw.random(), self._draw.uniform(1.2, 2.5)
        match action:
            case "kill" if role == "power cut":
                self._cut_power()
            case "kill":
                self._kill(role, lot)
            case "stop":
                self._stop(role, lot, share)
            case _:
                _, act = self._others[action]
                act()

    def _kill(self, role: str, lot: float) -> None:
        process = self._one(role, lot)
        if process and self._processes.signal(process, signal.SIGKILL):
            self.kills[role] += 1
            self._count_learner(process, "SIGKILL")

    def _stop(self, role: str, lot: float, share: float) -> None:
        """Stops the role for longer than a lease, a rank or controller for longer than its deadline or lead.

        While a learner is stopped another one takes the run over.
        """
        process = self._one(role, lot)
        usual_s = fleet.LEAD_S if role == "controller" else RANK_DEADLINE_S if process and process.rank else LEASE_S
        if process is None or not self._processes.stop(process, share * usual_s):
            return
        self.stops[role] += 1
        self._count_learner(process, "SIGSTOP")
        if role == "learner" and not process.rank:
            self._rival()

    def _count_learner(self, process: Process, number: str) -> None:
        if role_of(process) == "learner":
            self.learners[f"{number} {process.name}"] += 1

    def _cut_power(self) -> None:
        """Kills all processes at once, in two rounds: the second kills what was being started during the first."""
        for _ in range(2):
            killed = map(role_of, self._processes.kill_all())
            self.kills.update(role for role in killed if role in KILLS)  # the guard is no role
        self.done["power cuts"] += 1

    def _rival(self) -> None:
        """Starts a second learner, as by mistake."""
        if not self._named("rival"):
            self._processes.start_role("rival", "learner", "rival")
            self.done["rival learners"] += 1

    def _spot(self) -> None:
        """A worker joins, or is told that its machine is taken away."""
        lot = self._draw.random()
        there = self._named(*SPOTS)
        away = sorted({*SPOTS} - {process.name for process in there})
        if away and (lot < JOIN_SHARE or not there):
            self.done["spot workers"] += self._processes.join(away[0])
        else:
            self.done["notices"] += self._processes.notify(there[int(lot * len(there))])

    def _second(self) -> None:
        """Starts a second controller."""
        if not self._named("controller-2"):
            self._processes.start_role("controller-2", "controller", "controller-2")
            self.done["second controllers"] += 1

    def _demand(self) -> None:
        """Changes the fleet file, and ends the controllers in order: the supervisor starts one with the new file."""
        fleet.write_file(self._processes.directory, self._draw)
        for process in self._processes.living():
            if role_of(process) == "controller":
                self._processes.signal(process, signal.SIGTERM)
        self.done["changes of demand"] += 1

    def _evict(self) -> None:
        """Takes from workers what they hold, as after a revocation; these go on, so that it happens often."""
        with suppress(EchoQueueError), self._observer.observed():
            if queue := self._observer.admin():
                self.done["evicted tasks"] += queue.evict(self._draw.choice(EVICTED))

    def _restart(self) -> None:
        """Ends all roles in order, and starts them anew, while others are killed on."""
        for process in self._named("supervisor"):
            if self._processes.signal(process, signal.SIGTERM):
                self.done["restarts"] += 1

    def _rewind(self) -> None:
        """Rewinds to an older checkpoint."""
        if self._named("rewinder"):
            return
        for process in self._processes.living():
            if role_of(process) == "learner":
                self._processes.stop(process, REWIND_S)
        self._processes.start_role("rewinder", "rewinder")
        self.done["rewinds"] += 1

    def _revive(self) -> None:
        """Revives dead tasks."""
        with suppress(EchoQueueError), self._observer.observed():
            if queue := self._observer.admin():
                self.done["revived"] += queue.revive([dead.id for dead in queue.dead(3)])

    def _one(self, role: str, lot: float) -> Process | None:
        """Returns a process of `role`. No learner during a rewind: a killed one would be started again."""
        spared = role == "learner" and self._named("rewinder")
        return None if spared else self._processes.one(role, lot)

    def _named(self, *names: str) -> list[Process]:
        return [process for process in self._processes.living() if process.name in names]
