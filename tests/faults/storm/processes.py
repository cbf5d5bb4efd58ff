"""All processes of a storm, from outside: those that end too early are started again; any can be found and signalled.

The supervisor keeps the roles running. `tend` keeps the supervisor and the monitor alive; each waiting loop calls it.
"""

import heapq
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import orjson

from tests.faults.crash_points.forked_process import Forked
from tests.faults.storm import forked_roles, observer, roles
from tests.faults.storm.containers import MACHINERY, WorkerContainers
from tests.faults.storm.forked_roles import Process
from tests.faults.storm.settings import POOLS, SPOTS, WORKERS, supervised_roles

REAP_S = 0.5
SERVERS = {"redis": ("redis-server", "valkey-server"), "store": ("rclone",)}
LEAVE_S = 40.0
"""The longest time that the supervisor may take to end all roles in order."""


class Processes:
    """The processes of the storm in `directory`. `containers`: those of its workers, if the supervisor keeps none."""

    def __init__(self, directory: Path, containers: WorkerContainers | None = None) -> None:
        self.directory = directory
        self.last_kill = time.monotonic()
        self.unexpected: Counter[str] = Counter()
        """Ends of processes that the storm did not cause."""
        self._containers = containers
        self._supervisor: Forked | None = None
        self._monitor: Forked | None = None
        self._stopped: list[tuple[float, int]] = []
        self._supervisor_ends = False
        self._reaped = 0.0

    def tend(self) -> None:
        """Starts a supervisor that is gone again, as init would, and continues stopped roles at their time."""
        code = self._supervisor.poll() if self._supervisor else None
        if self._supervisor is None or code is not None:
            if code is not None and not self._supervisor_ends:
                self.unexpected[f"the supervisor ended by itself with {code}"] += 1
            self._supervisor_ends = False
            kept = supervised_roles(() if self._containers else WORKERS)
            self._supervisor = self.fork("supervisor", lambda: forked_roles.supervise(self.directory, kept))
        if self._monitor and (code := self._monitor.poll()) is not None:
            self.unexpected[f"the monitor ended by itself with {code}"] += 1
            self.watch()
        while self._stopped and self._stopped[0][0] <= time.monotonic():
            self._go_on(heapq.heappop(self._stopped)[1])
        if time.monotonic() - self._reaped > REAP_S:
            forked_roles.reap(frozenset(child.pid for child in (self._supervisor, self._monitor) if child))
            self._reaped = time.monotonic()

    def watch(self) -> None:
        """Starts the monitor, which audits the queue."""
        self._monitor = self.fork("monitor", lambda: observer.monitor(self.directory))

    def join(self, name: str) -> bool:
        """Starts a worker besides those that are kept; returns False if its launcher is still busy with it."""
        if self._containers:
            return self._containers.start(name)
        self.start_role(name, "worker", name)
        return True

    def notify(self, process: Process) -> bool:
        """Tells a worker that its machine is taken away; returns False if it was gone before."""
        return self._containers.stop(process.name) if self._containers else self.signal(process, signal.SIGTERM)

    def start_role(self, name: str, *words: str) -> None:
        """Starts a role besides those that the supervisor keeps."""
        self.fork(name, lambda: roles.run_role(self.directory, words))

    def fork(self, name: str, run: Callable[[], int]) -> Forked:
        return forked_roles.fork(name, run, self.directory / "logs" / f"{name}.log")

    def living(self) -> list[Process]:
        """Returns all processes but those that start containers and watch over them."""
        known = forked_roles.descendants()
        return [process for process in known if process.state not in "ZX" and process.name not in MACHINERY]

    def one(self, role: str, lot: float) -> Process | None:
        """Returns the process of `role` that `lot`, a number in 0 … 1, selects; None if there is none."""
        found = sorted((process for process in self.living() if role_of(process) == role), key=lambda each: each.pid)
        return found[int(lot * len(found))] if found else None

    def signal(self, process: Process, number: signal.Signals) -> bool:
        """Sends the signal; returns False if the process was gone before."""
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
            if number == signal.SIGKILL:
                self.last_kill = time.monotonic()
            self._supervisor_ends |= process.name == "supervisor" and number != signal.SIGSTOP
            self._note(number.name, process)
            return True
        return False

    def stop(self, process: Process, length_s: float) -> bool:
        """Stops the process for `length_s`; returns False if it was gone, or stopped already."""
        if process.state == "T" or not self.signal(process, signal.SIGSTOP):
            return False
        heapq.heappush(self._stopped, (time.monotonic() + length_s, process.pid))
        return True

    def kill_all(self) -> list[Process]:
        """Kills all processes at once, the supervisor's guard included, but not the monitor."""
        self._supervisor_ends = True
        return [
            each for each in self.living() if each.name != "monitor" and self.signal(each, signal.SIGKILL)
        ]  # fmt: skip

    def wake(self) -> None:
        """Continues all stopped processes now."""
        while self._stopped:
            self._go_on(heapq.heappop(self._stopped)[1])

    def end(self) -> None:
        """Ends all processes in order; those that do not end are killed."""
        for child in (self._supervisor, self._monitor):
            if child and child.poll() is None:
                os.kill(child.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(LEAVE_S)
        if self._containers:
            self._containers.end()
        for process in self.living():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _go_on(self, pid: int) -> None:
        if any(process.pid == pid and process.state == "T" for process in self.living()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _note(self, what: str, process: Process) -> None:
        with (self.directory / "storm.jsonl").open("ab") as file:
            file.write(orjson.dumps({"t": time.time(), "what": what, **asdict(process)}) + b"\n")


def role_of(process: Process) -> str:
    """Returns the role of a process. A second learner is a learner, and so is a rank; a machine is a worker."""
    for role, names in SERVERS.items():
        if process.name in names:
            return role
    if process.name in WORKERS + SPOTS + POOLS:
        return "worker"
    if process.name.startswith("controller"):
        return "controller"
    if process.name.startswith("python"):
        return "guard"
    return "learner" if process.name.startswith("rival") or process.rank else process.name
