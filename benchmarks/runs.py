"""Runs of `echo-queue` for benchmarks: variants of a configuration, and the models of a finished run."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from echo_queue.config import Config

QUICK_START = Path("configs/quickstart.toml")
RUN_DEADLINE_S = 600.0
ECHO_QUEUE = ("-m", "echo_queue.cli")


def quick_start(command: str, directory: Path, settings: Mapping[str, object]) -> None:
    """Runs `echo-queue COMMAND` on the quick start, as `echo_queue` does on any configuration."""
    echo_queue(command, QUICK_START, directory, settings)


def echo_queue(
    command: str,
    config: Path,
    directory: Path,
    settings: Mapping[str, object],
    program: Sequence[str] = ECHO_QUEUE,
    *,
    deadline_s: float = RUN_DEADLINE_S,
) -> None:
    """Runs `echo-queue COMMAND` on a configuration with `settings` (SECTION__KEY); `directory` names the run.

    `program`: what Python is given instead of the command `echo-queue`.
    """
    values = {"RUN__NAME": directory.name, "RUN__DIR": directory, **settings}
    subprocess.run(
        [sys.executable, *program, command, str(config)],
        env=os.environ | {f"ECHO_QUEUE_{key}": str(value) for key, value in values.items()},
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=deadline_s,
    )


def models(path: Path, config: Config, named: Sequence[Path]) -> Sequence[Path]:
    """Returns the folders named; by default the base and the final model of the run, which is first run to its end."""
    if not named:
        subprocess.run([sys.executable, "-m", "echo_queue.cli", "run", str(path)], check=True, stdout=sys.stderr)
    folders = named or [Path(config.base_model), config.run.dir / "model"]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise SystemExit(f"no model folder: {', '.join(missing)}")
    return folders
