"""Machines with one worker each: started, taken away without a word or after a notice, and replaced."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fleet.plan import Plan, prepare, sampled

ENDED_S = 60.0
POLL_S = 0.1


@dataclass(frozen=True, eq=False)
class Machine:
    """One process; `notice` is the file that it watches."""

    name: str
    process: "subprocess.Popen[bytes]"
    notice: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(ENDED_S)


@dataclass(frozen=True, eq=False)
class Doomed:
    """A machine that was given notice, and when it will be gone (monotonic seconds)."""

    machine: Machine
    gone_s: float


@dataclass(eq=False)
class Fleet:
    """`size` machines that run the worker of `config` as `plan` says; what they print goes to `directory`."""

    config: Path
    directory: Path
    plan: Plan
    size: int
    taken: int = 0
    _machines: list[Machine] = field(default_factory=list)
    _doomed: list[Doomed] = field(default_factory=list)
    _lives: int = 0
    _overdue: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.plan.counts.mkdir()
        self.plan.write(self.directory / "plan.json")
        self._machines = [self._new() for _ in range(self.size)]

    @property
    def sampled(self) -> int:
        """Tokens, on all machines there were."""
        return sampled(self.plan.counts)

    @property
    def overdue(self) -> list[str]:
        """Machines that had not left by themselves when their notice ran out."""
        return self._overdue

    def take(self, place: int, notice_s: float | None) -> None:
        """Another machine comes in its place, which has to come up first."""
        machine, self._machines[place] = self._machines[place], self._new()
        self.taken += 1
        if notice_s is None:
            machine.kill()
        else:
            machine.notice.write_text(f"{notice_s:g}")
            self._doomed.append(Doomed(machine, time.monotonic() + notice_s))

    def sweep(self) -> None:
        """Whose time has come is gone. Raises `RuntimeError` if one has failed."""
        for doomed in [one for one in self._doomed if one.gone_s <= time.monotonic()]:
            self._doomed.remove(doomed)
            if doomed.machine.process.poll() != 0:
                self._overdue.append(doomed.machine.name)
            doomed.machine.kill()
        for machine in self._machines:
            if machine.process.poll():
                log = (self.directory / f"{machine.name}.log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(
                    f"{machine.name} ended with {machine.process.returncode}; its log ends: {log[-3000:]}"
                )

    def wait_out(self) -> None:
        """Until every notice has run out, or its machine has left."""
        for doomed in self._doomed:
            try:
                doomed.machine.process.wait(max(0.0, doomed.gone_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._overdue.append(doomed.machine.name)

    def end(self) -> None:
        for machine in (*self._machines, *(doomed.machine for doomed in self._doomed)):
            machine.kill()

    def _new(self) -> Machine:
        self._lives += 1
        name = f"m{self._lives}"
        notice = self.directory / f"{name}.notice"
        preemption = {"WATCH": "file", "FILE": notice, "POLL_S": POLL_S}
        variables = {f"ECHO_QUEUE_ROLLOUT__PREEMPTION__{key}": str(value) for key, value in preemption.items()}
        words = (str(self.config), name, str(self.directory / "plan.json"))
        prepare(self.plan.counts, name)
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                (sys.executable, "-m", "benchmarks.fleet.machine", *words),
                env=os.environ | variables,
                stdout=log,
                stderr=log,
            )
        return Machine(name, process, notice)
