"""Runs steps one after another, each in a process of its own with a time-out, and keeps what each of them found.

- All of it stands in one file of JSON lines, each on the disk before anything else happens: a step has begun, its rows,
  then how it ended. What a step that raises, hangs or kills this process takes with it is itself.
- A step ends with all processes that it started, whatever sessions they made.
- A step that the machine has no room or time for is skipped, and a sentence says what was missing.

It needs nothing but Python and this checkout, so that it can say what else is missing.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rows import append_line
from tests.processes import processes_with

GB = 1e9
LEAST_S = 10.0
"""No step begins with less time than this."""
KILL_DEADLINE_S = 30.0
TOLD = 3_000
"""Characters of a step's output that are printed, its last ones."""
MARK = "ECHO_QUEUE_GPU_STEP"
"""The variable by which the processes of a step are known."""

Wait = Callable[["subprocess.Popen[bytes]", float], None]


@dataclass(frozen=True)
class Card:
    """A GPU as nvidia-smi tells of it; without a name there is none."""

    name: str = ""
    total_gb: float = 0.0
    free_gb: float = 0.0


@dataclass(frozen=True)
class Step:
    """`command`: what Python is given. The rest: gigabytes that must be free before it begins."""

    name: str
    command: Sequence[str]
    timeout_s: float
    disk_gb: float = 0.0
    host_gb: float = 0.0
    gpu_gb: float = 0.0


def card() -> Card:
    """Returns the first GPU."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        line = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()[0]
        name, total, free = line.split(", ")
        return Card(name, int(total) * 2**20 / GB, int(free) * 2**20 / GB)
    return Card()


def until(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    """Waits for a process. Raises `subprocess.TimeoutExpired`."""
    process.wait(timeout_s)


@dataclass(frozen=True)
class Runner:
    """`folder` gets `rows.jsonl` and `log.txt`; `seconds` is all the time that there is for all steps.

    `slower`: by how much a step's time-out is longer here.
    """

    folder: Path
    seconds: float
    environ: Mapping[str, str]
    wait: Wait = until
    slower: float = 1.0

    @property
    def rows(self) -> Path:
        return self.folder / "rows.jsonl"

    def run(self, steps: Sequence[Step]) -> list[str]:
        """Runs them in their order. Returns the names of those that failed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        give_up, failed = time.monotonic() + self.seconds, []
        for step in steps:
            left_s = give_up - time.monotonic()
            if why := missing(step, left_s):
                self._note(step, "skipped", why=why)
                continue
            self._note(step, "began")
            began = time.monotonic()
            why = self._ended(step, min(step.timeout_s * self.slower, left_s))
            self._note(step, "failed" if why else "ok", why=why, seconds=round(time.monotonic() - began, 1))
            failed += [step.name] if why else []
        return failed

    def _ended(self, step: Step, timeout_s: float) -> str:
        """Runs a step to its end; returns why it failed, or nothing."""
        mark = uuid.uuid4().hex
        with (self.folder / "log.txt").open("ab+") as log:
            start = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                [sys.executable, *step.command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**self.environ, MARK: mark}, start_new_session=True,
            )  # fmt: skip
            late = ""
            try:
                self.wait(process, timeout_s)
            except subprocess.TimeoutExpired:
                late = f"it had not ended after {timeout_s:.0f} s"
            finally:
                survivors = kill(mark)
            code = process.wait(KILL_DEADLINE_S) if not survivors else None
            log.seek(start)
            told = log.read().decode(errors="replace")
        print(told[-TOLD:], flush=True)
        if survivors:
            return f"{late or 'it has ended'}, and processes {survivors} live on"
        return late or (reason(told, code) if code else "")

    def _note(self, step: Step, state: str, **more: object) -> None:
        print(f"── {step.name}: {state}" + "".join(f", {value}" for value in more.values() if value), flush=True)
        append_line(self.rows, json.dumps({"step": step.name, "state": state, "time": time.time(), **more}).encode())


def missing(step: Step, left_s: float) -> str:
    """Returns a sentence that says what a step lacks here; nothing if it can begin."""
    if left_s < LEAST_S:
        return f"no time is left: {max(0.0, left_s):.0f} s"
    temporary = tempfile.gettempdir()
    free: dict[str, tuple[float, Callable[[], float]]] = {
        f"on the disk of {temporary}": (step.disk_gb, lambda: shutil.disk_usage(temporary).free / GB),
        "of the host's memory": (step.host_gb, host_gb),
        "of the GPU's memory": (step.gpu_gb, lambda: card().free_gb),
    }
    for where, (needed, found) in free.items():
        if needed and (here := found()) < needed:
            return f"it needs {needed:.0f} GB {where}, and {here:.1f} GB are free"
    return ""


def host_gb() -> float:
    """Returns the memory that processes may still take (proc_meminfo(5))."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024 / GB


def reason(told: str, code: int) -> str:
    """Returns why a step failed, from its output: the promises that it broke, or else its last line."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    said = "; ".join(line for line in lines if line.startswith("FAIL ")) or (lines[-1] if lines else "it said nothing")
    return f"{said} (exit code {code})" if code > 0 else f"{signal.Signals(-code).name}: {said}"


def kill(mark: str) -> list[int]:
    """Kills all processes of a step. Returns those that the kernel still holds at the deadline."""
    give_up = time.monotonic() + KILL_DEADLINE_S
    while (found := list(processes_with(MARK, mark))) and time.monotonic() < give_up:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return found
