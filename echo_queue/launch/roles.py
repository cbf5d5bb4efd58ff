"""The programs of the roles. `echo_queue` imports neither workers nor learner: it starts them as processes.

Each role is one process that takes the TOML file as its first argument, and begins as `echo_queue.launch.entry` does.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NoReturn

from echo_queue.errors import ConfigError, Problem
from echo_queue.launch import entry
from echo_queue.launch.import_path import PYTHON

Program = Literal[
    "workers",
    "workers.evaluation",
    "workers.preemption.relay",
    "learner",
    "learner.base_model",
    "learner.export",
    "learner.recovery.rewind",
]
EXTRA: dict[Program, str] = {
    "workers": "worker",
    "workers.evaluation": "worker",
    "workers.preemption.relay": "worker",
    "learner": "learner",
    "learner.base_model": "learner",
    "learner.export": "learner",
    "learner.recovery.rewind": "learner",
}
ROLES: tuple[Program, ...] = ("workers", "workers.preemption.relay", "learner")
"""The programs that run until they are told to end, which is then no failure."""


def command(program: Program, config: Path, *options: str) -> list[str]:
    """Returns a role's command line. Raises `ConfigError` where its packages are not installed."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise ConfigError(
            Problem(program, "needs torch and transformers", f"pip install 'echo-queue[{EXTRA[program]}]'")
        )
    return [*PYTHON, "-m", *_begun(program), str(config), *options]


def flags(words: Mapping[str, object]) -> list[str]:
    """Returns a program's options by their names; None, an empty text and False are not given."""
    given = ((name, one) for name, one in words.items() if one is not None and one is not False and one != "")
    return [f"--{name}" if one is True else f"--{name}={one}" for name, one in given]


def _begun(program: Program) -> tuple[str, ...]:
    return (entry.__name__, program) if program in ROLES else (program,)


def become(program: Program, config: Path, *options: str) -> NoReturn:
    """Replaces this process by the role, so that signals reach the role and its exit code is this command's."""
    arguments = command(program, config, *options)
    if program in ROLES:
        entry.hold_back()
    os.execv(arguments[0], arguments)
