"""Docker, or Podman where no Docker answers, as a program that a check calls."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300.0
UNIFIED = Path("/sys/fs/cgroup/unified")


class Engine:
    """The engine of this machine, and one project of compose.yaml in it."""

    def __init__(self, project: str) -> None:
        self._program = ["docker" if docker_answers() else "podman"]
        composer = Path(sys.executable).parent / "podman-compose"
        compose = ["docker", "compose"] if docker_answers() else [str(composer)]
        self._compose = [*compose, "--project-name", project, "--file", str(ROOT / "compose.yaml")]
        self._project = project

    def __call__(self, *words: str, check: bool = True) -> str:
        """Returns what the engine prints. Raises `RuntimeError`, with what it says, if it fails and `check`."""
        return self._run([*self._program, *words], check)

    def compose(self, *words: str, check: bool = True) -> str:
        return self._run([*self._compose, *words], check)

    def logs(self, container: str) -> str:
        """Returns what the container's program has printed, errors included."""
        command = [*self._program, "logs", "--tail", "20", container]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S, check=False
        )
        return done.stdout

    def containers(self, service: str) -> list[str]:
        """Returns the ids of a service's containers, also of those that have ended."""
        labels = (f"com.docker.compose.project={self._project}", f"com.docker.compose.service={service}")
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return self("ps", "--all", "--quiet", "--no-trunc", *filters).split()

    def container(self, service: str) -> dict[str, Any]:
        """Returns what the engine says of the service's first container; empty before there is one."""
        found = self.containers(service)
        return self.inspect(found[0]) if found else {}

    def inspect(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self("inspect", name))
        return found[0]

    def succeeds(self, container: str, *command: str) -> bool:
        """Returns whether a command in the container ends with 0."""
        words = [*self._program, "exec", container, *command]
        done = subprocess.run(words, capture_output=True, timeout=DEADLINE_S, check=False)
        return done.returncode == 0

    def _run(self, command: Sequence[str], check: bool) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=ROOT)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout


@cache
def docker_answers() -> bool:
    """Returns whether Docker is installed and its daemon answers."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, timeout=DEADLINE_S, check=False).returncode == 0


def prepare(settings: str = "containers.conf") -> None:
    """Makes Podman work where it has no control groups of its own: this process starts again without their mount.

    `settings`: Podman's, a file in this folder.
    """
    if docker_answers():
        return
    os.environ["CONTAINERS_CONF"] = str(Path(__file__).with_name(settings))
    if UNIFIED.is_mount():
        module = ["-m", sys.modules["__main__"].__spec__.name]  # type: ignore[union-attr]
        script = f'umount {UNIFIED} && exec "$@"'
        os.execvp("unshare", ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, *module, *sys.argv[1:]])
