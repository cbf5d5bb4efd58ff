"""A stand-in for Slurm: it runs an array as sbatch would, sends its signals, and puts a job into the queue again.

It reads the options in the script, runs a copy of it, as slurmd does, and gives it the variables that Slurm gives. A
signal goes where the script's --signal says: B: is the script alone, and not what it started.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SCONTROL = """
import os, sys
with open(os.environ["STAND_IN_REQUEUED"], "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
"""


class Slurm:
    """Jobs of one array, below `folder`; `programs`: further commands that the nodes have, name → Python."""

    def __init__(self, folder: Path, submit_dir: Path, programs: Mapping[str, str]) -> None:
        self._submit_dir, self._spool, self._bin = submit_dir, folder / "spool", folder / "bin"
        self._requeued = folder / "requeued"
        self._requeued.touch()
        self._jobs: dict[int, subprocess.Popen[bytes]] = {}
        self._command: list[str] = []
        for place in (self._spool, self._bin):
            place.mkdir()
        for name, text in {"scontrol": SCONTROL, **programs}.items():
            (self._bin / name).write_text(f"#!{sys.executable}\n{text}")
            (self._bin / name).chmod(0o755)

    def sbatch(self, script: Path, *arguments: str, array: Sequence[int]) -> None:
        """Starts the script once for each number of the array."""
        copy = Path(shutil.copy(script, self._spool / "slurm_script"))
        self._command = ["bash", str(copy), *arguments]
        self.options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script.read_text(), re.MULTILINE))
        for task in array:
            self.start(task)

    def start(self, task: int) -> None:
        variables = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "SLURM_SUBMIT_DIR": str(self._submit_dir),
            "SLURM_JOB_ID": str(1000 + task),
            "SLURM_ARRAY_JOB_ID": "1000",
            "SLURM_ARRAY_TASK_ID": str(task),
            "STAND_IN_REQUEUED": str(self._requeued),
        }
        self._jobs[task] = subprocess.Popen(self._command, env=os.environ | variables, start_new_session=True)

    def time_is_nearly_over(self, task: int) -> None:
        """Sends the signal that the script asked for, to the script."""
        whom, name = re.fullmatch(r"(B:)?(\w+)@\d+", self.options["signal"]).groups()  # type: ignore[union-attr]
        assert whom, "the signal would reach no batch script"
        self._jobs[task].send_signal(signal.Signals[f"SIG{name}"])

    def preempt(self, task: int) -> None:
        self._jobs[task].send_signal(signal.SIGTERM)

    def ended(self, task: int, deadline_s: float) -> int:
        """Waits for the job's end; returns its exit code. A job that asked for it is in the queue again then."""
        code = self._jobs[task].wait(timeout=deadline_s)
        if f"requeue {1000 + task}\n" in self._requeued.read_text():
            assert "requeue" in self.options, "Slurm would refuse to requeue the job"
            self._requeued.write_text("")
            self.start(task)
        return code

    def end(self) -> None:
        for job in self._jobs.values():
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
