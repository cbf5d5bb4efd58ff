"""The workers of a storm in containers, as compose.yaml starts, confines and ends them.

- Their service is compose.yaml's `worker`, of the image of `make images`, on this machine's network, with the storm's
  folder and the tests' simulations mounted. What is imported of the product is the image's.
- A worker that was killed is started again by the engine, as compose.yaml says. A notice is `compose stop`, a machine
  that joins is `compose up`; both go on beside the storm.
"""

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import yaml

from tests.faults.storm.settings import SPOTS, WORKERS
from tests.images.engine import ROOT, Engine

PROJECT = "echo-queue-storm"
MACHINERY = frozenset({"conmon", "crun", "podman", "podman-compose", "runc"})
"""Names of processes that are no role: they start containers, watch over them, and must outlive a storm."""
GRACE, STOPS_S = "5s", 60.0
INSIDE = "/storm"


class WorkerContainers:
    """The containers of all workers of the storm in `directory`."""

    def __init__(self, directory: Path) -> None:
        file = directory / "compose.json"
        file.write_text(json.dumps(services(directory)))
        self._engine = Engine(PROJECT, file)
        self._log = directory / "logs" / "compose.out"
        self._under_way: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> bool:
        """Begins to start the workers; returns False if the launcher is still busy with one of them."""
        return self._begin(names, "up", "--detach", *names)

    def stop(self, name: str) -> bool:
        """Gives the worker its notice; returns False if the launcher is still busy with it."""
        return self._begin((name,), "stop", name)

    def end(self) -> None:
        """Waits for the launcher, and removes all containers."""
        for process in self._under_way.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOPS_S)
        self._engine.compose("down", "--volumes", check=False)

    def _begin(self, names: tuple[str, ...], *words: str) -> bool:
        if any(name in self._under_way and self._under_way[name].poll() is None for name in names):
            return False
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            process = self._engine.begin_compose(log, *words)
        self._under_way |= dict.fromkeys(names, process)
        return True


def services(directory: Path) -> dict[str, object]:
    """Returns a compose file in which each worker of the storm is a service like compose.yaml's worker."""
    worker = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["worker"]
    del worker["depends_on"], worker["scale"]
    own = {
        "network_mode": "host",
        "user": f"{os.getuid()}:{os.getgid()}",  # to whom the storm's folder belongs
        "entrypoint": ["python3", "-m", "tests.faults.storm.contained_worker", str(directory)],
        "environment": {"PYTHONPATH": INSIDE, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        "volumes": [f"{directory}:{directory}", f"{ROOT / 'tests'}:{INSIDE}/tests:ro"],
        "healthcheck": {"disable": True},  # its role is no `echo-queue worker`
        "stop_grace_period": GRACE,
    }
    return {
        "name": PROJECT,
        "x-podman": {"in_pod": False},
        "services": {name: {**worker, **own, "command": [name]} for name in WORKERS + SPOTS},
    }
