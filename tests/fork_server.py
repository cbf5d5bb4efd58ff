"""Learners and workers that begin at once: forks of a process that has imported what they need.

Whole commands with interpreters of their own start in `tests/pipeline`, `tests/fleet/invitation` and `tests/infra`.
"""

import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["learner.training_loop", "workers.worker", "workers.engines.transformers.engine", "transformers.models.qwen3"]
)


class Program:
    """`python -m module` with these words and variables; what it prints is added to `log`, if that is given."""

    def __init__(
        self, module: str, *words: str, environ: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        arguments = (module, words, dict(os.environ if environ is None else environ), log)
        self._process = PROCESSES.Process(target=_run, args=arguments, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self, timeout: float) -> int:
        """Waits for its end, and returns its exit code, negative if a signal ended it."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _run(module: str, words: Sequence[str], environ: Mapping[str, str], log: Path | None) -> None:
    os.environ.clear()
    os.environ.update(environ)
    if log is not None:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    sys.argv = [module, *words]
    sys.exit(importlib.import_module(f"{module}.__main__").main())
