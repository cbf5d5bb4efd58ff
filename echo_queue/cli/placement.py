"""What each worker of a machine has of it: a GPU, and the port on which it serves its peers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from echo_queue.config import Config
from echo_queue.errors import Problem
from echo_queue.fleet.invitation import machine

ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA numbers GPUs by their speed otherwise, and nvidia-smi, by which they were judged, by their place on the bus."""


@dataclass(frozen=True)
class Placement:
    """A worker and what it has of the machine. `device`: a GPU, as CUDA_VISIBLE_DEVICES names it; empty: none.

    `port`: that on which it serves its peers; 0: any.
    """

    name: str
    device: str = ""
    port: int = 0

    def variables(self) -> Iterator[str]:
        """Yields the environment variables that place a worker, as `NAME=value`."""
        if self.device:
            yield f"CUDA_VISIBLE_DEVICES={self.device}"
        if self.port:
            yield f"ECHO_QUEUE_WEIGHTS__PEER_PORT={self.port}"


def placements(names: Sequence[str], devices: Sequence[str], first_port: int) -> list[Placement]:
    """Places the workers of these names on `devices` in turn, or on CPUs if there are none.

    They serve their peers on ports from `first_port` on, unless it is 0.
    """
    return [
        Placement(name, devices[number % len(devices)] if devices else "", first_port + number if first_port else 0)
        for number, name in enumerate(names)
    ]


def of_run(config: Config, environ: Mapping[str, str] = os.environ) -> list[Placement]:
    """Places the workers that `echo-queue run` starts here, called worker-1, worker-2, …

    The learner takes the first GPUs, and workers take these last. No worker is told its GPU where there is only one.
    """
    names = [f"worker-{number}" for number in range(1, config.rollout.workers + 1)]
    found, own = _devices(config, environ), _learners(config)
    devices = [*found[own:], *found[:own]] if len(found) > 1 else []
    return placements(names, devices, config.weights.peer_port)


def sharing(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Yields one warning about the GPUs that several roles of a run share, if there are any."""
    found = _devices(config, environ)
    holders = {device: ["the learner"] if number < _learners(config) else [] for number, device in enumerate(found)}
    for place in of_run(config, environ) if found else ():
        holders[place.device or found[0]].append(place.name)
    shared = [
        f"GPU {device} is shared by {', '.join(names[:-1])} and {names[-1]}"
        for device, names in holders.items()
        if len(names) > 1
    ]
    if shared:
        fewer = "name fewer workers here, or start workers on other machines"
        fix = f"if they do not fit there, {fewer}"
        if config.rollout.engine == "vllm":
            fix = f"set rollout.gpu_memory_utilization to each worker's part of what the others leave free; or {fewer}"
        yield Problem("rollout.workers", "; ".join(shared), fix)


def _devices(config: Config, environ: Mapping[str, str]) -> list[str]:
    """Returns the GPUs of a run, as CUDA_VISIBLE_DEVICES names them. Without a torch for them, no driver is asked."""
    cuda = machine.torch_cuda()
    return machine.devices(config.rollout.engine, machine.gpus() if cuda else [], cuda, environ)


def _learners(config: Config) -> int:
    """Returns how many GPUs the learner takes."""
    return 0 if config.learner.device == "cpu" else config.learner.ranks
