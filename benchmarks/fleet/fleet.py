"""Machines with one worker each: started, taken away without warning or after a notice, and replaced.

Their processes are forked from one that has imported everything, so that a new machine costs `boot_s` and takes no
processor time from the others.
"""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from benchmarks.fleet.machine import run_machine
from benchmarks.fleet.plan import Plan, prepare, sampled

ENDED_S = 60.0
LOG_TAIL = 3000
PRELOADED = ["benchmarks.fleet.machine", "transformers.models.qwen3.modeling_qwen3"]


@dataclass(frozen=True, eq=False)
class Machine:
    """One worker process. `notice`: the file that it watches."""

    name: str
    process: ForkServerProcess
    notice: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.join(ENDED_S)


@dataclass(frozen=True, eq=False)
class NoticedMachine:
    """A machine that was given notice. `killed_s`: when it will be killed (monotonic seconds)."""

    machine: Machine
    killed_s: float


@dataclass(eq=False)
class Fleet:
    """`size` machines with the worker of `config`, which follow `plan` and write their logs to `directory`."""

    config: Path
    directory: Path
    plan: Plan
    size: int
    boot_s: float
    taken: int = 0
    overdue: list[str] = field(default_factory=list)
    """Names of the machines that had not left by themselves when their notice ran out."""
    _context: ForkServerContext = field(default_factory=lambda: multiprocessing.get_context("forkserver"))
    _machines: list[Machine] = field(default_factory=list)
    _noticed: list[NoticedMachine] = field(default_factory=list)
    _started: int = 0

    def start(self) -> None:
        self.plan.counts.mkdir()
        self._context.set_forkserver_preload(PRELOADED)
        self._machines = [self._new(boot_s=0.0) for _ in range(self.size)]

    @property
    def sampled(self) -> int:
        """The number of tokens sampled on all machines there were."""
        return sampled(self.plan.counts)

    def take(self, place: int, notice_s: float | None, dismiss: Callable[[str], None] | None = None) -> None:
        """Takes a machine away, at once or after a notice, and starts another in its place.

        `dismiss` tells a worker of that name to leave; without it the worker finds a notice in its file.
        """
        machine, self._machines[place] = self._machines[place], self._new(self.boot_s)
        self.taken += 1
        if notice_s is None:
            machine.kill()
        else:
            if dismiss:
                dismiss(machine.name)
            else:
                machine.notice.write_text(f"{notice_s:g}")
            self._noticed.append(NoticedMachine(machine, time.monotonic() + notice_s))

    def sweep(self) -> None:
        """Kills the machines whose notice has run out. Raises `RuntimeError` if a machine has failed."""
        for noticed in [one for one in self._noticed if one.killed_s <= time.monotonic()]:
            self._noticed.remove(noticed)
            if noticed.machine.process.exitcode != 0:
                self.overdue.append(noticed.machine.name)
            noticed.machine.kill()
        for machine in (*self._machines, *(noticed.machine for noticed in self._noticed)):
            if machine.process.exitcode:
                log = machine.notice.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"{machine.name} ended with {machine.process.exitcode}: {log[-LOG_TAIL:]}")

    def wait_out(self) -> None:
        """Waits until every machine that was given notice has left or was killed."""
        while self._noticed:
            self._noticed[0].machine.process.join(max(0.0, self._noticed[0].killed_s - time.monotonic()))
            self._noticed = [one for one in self._noticed if one.machine.process.exitcode != 0]
            self.sweep()

    def end(self) -> None:
        for machine in (*self._machines, *(noticed.machine for noticed in self._noticed)):
            machine.kill()

    def _new(self, boot_s: float) -> Machine:
        self._started += 1
        name = f"m{self._started}"
        notice = self.directory / f"{name}.notice"
        prepare(self.plan.counts, name)
        process = self._context.Process(
            target=run_machine, args=(self.config, name, self.plan, notice, boot_s), name=name
        )
        process.start()
        return Machine(name, process, notice)
