"""Machines with one worker each: started, taken away without a word or after a notice, and replaced.

Their processes are forked from one that has all imports behind it, so that what a new machine costs is `boot_s`, not
the processors of the others.
"""

import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from benchmarks.fleet.machine import live
from benchmarks.fleet.plan import Plan, prepare, sampled

ENDED_S = 60.0
LOG_TAIL = 3000
PRELOADED = ["benchmarks.fleet.machine", "transformers.models.qwen3.modeling_qwen3"]


@dataclass(frozen=True, eq=False)
class Machine:
    """One process; `notice` is the file that it watches."""

    name: str
    process: ForkServerProcess
    notice: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.join(ENDED_S)


@dataclass(frozen=True, eq=False)
class Doomed:
    """A machine that was given notice, and when it will be gone (monotonic seconds)."""

    machine: Machine
    gone_s: float


@dataclass(eq=False)
class Fleet:
    """`size` machines with the worker of `config`, which do as `plan` says; what they print goes to `directory`."""

    config: Path
    directory: Path
    plan: Plan
    size: int
    boot_s: float
    taken: int = 0
    overdue: list[str] = field(default_factory=list)
    """Machines that had not left by themselves when their notice ran out."""
    _context: ForkServerContext = field(default_factory=lambda: multiprocessing.get_context("forkserver"))
    _machines: list[Machine] = field(default_factory=list)
    _doomed: list[Doomed] = field(default_factory=list)
    _lives: int = 0

    def start(self) -> None:
        self.plan.counts.mkdir()
        self._context.set_forkserver_preload(PRELOADED)
        self._machines = [self._new(boot_s=0.0) for _ in range(self.size)]

    @property
    def sampled(self) -> int:
        """Tokens, on all machines there were."""
        return sampled(self.plan.counts)

    def take(self, place: int, notice_s: float | None) -> None:
        """Another machine comes in its place."""
        machine, self._machines[place] = self._machines[place], self._new(self.boot_s)
        self.taken += 1
        if notice_s is None:
            machine.kill()
        else:
            machine.notice.write_text(f"{notice_s:g}")
            self._doomed.append(Doomed(machine, time.monotonic() + notice_s))

    def sweep(self) -> None:
        """Whose time has come is gone. Raises `RuntimeError` if a machine has failed."""
        for doomed in [one for one in self._doomed if one.gone_s <= time.monotonic()]:
            self._doomed.remove(doomed)
            if doomed.machine.process.exitcode != 0:
                self.overdue.append(doomed.machine.name)
            doomed.machine.kill()
        for machine in (*self._machines, *(doomed.machine for doomed in self._doomed)):
            if machine.process.exitcode:
                log = machine.notice.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"{machine.name} ended with {machine.process.exitcode}: {log[-LOG_TAIL:]}")

    def wait_out(self) -> None:
        """Until every machine that was given notice has left, or is gone."""
        while self._doomed:
            self._doomed[0].machine.process.join(max(0.0, self._doomed[0].gone_s - time.monotonic()))
            self._doomed = [one for one in self._doomed if one.machine.process.exitcode != 0]
            self.sweep()

    def end(self) -> None:
        for machine in (*self._machines, *(doomed.machine for doomed in self._doomed)):
            machine.kill()

    def _new(self, boot_s: float) -> Machine:
        self._lives += 1
        name = f"m{self._lives}"
        notice = self.directory / f"{name}.notice"
        prepare(self.plan.counts, name)
        process = self._context.Process(target=live, args=(self.config, name, self.plan, notice, boot_s), name=name)
        process.start()
        return Machine(name, process, notice)
