"""What each worker of a machine has of it: a GPU, and the port on which it serves its peers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from echo_queue.capacity.estimate.learner_memory import learner_memory
from echo_queue.capacity.estimate.shared_card import SharedCard, shared_card
from echo_queue.capacity.estimate.worker_memory import worker_memory
from echo_queue.config import Config
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.errors import ConfigError, Problem
from echo_queue.fleet.invitation import machine
from echo_queue.models.config_file import model_shape

ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA numbers GPUs by their speed otherwise, and nvidia-smi, by which they were judged, by their place on the bus."""
FEWER = "name fewer workers here, or start workers elsewhere"


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
    return _placed(config, _devices(config, _gpus(), environ))


def _placed(config: Config, found: Sequence[str]) -> list[Placement]:
    names = [f"worker-{number}" for number in range(1, config.rollout.workers + 1)]
    own = _learners(config)
    devices = [*found[own:], *found[:own]] if len(found) > 1 else []
    return placements(names, devices, config.weights.peer_port)


@dataclass(frozen=True)
class Card:
    """A GPU with those that a run starts on it. `memory`: its bytes; 0 where they are not known."""

    device: str
    memory: int
    learner: bool
    workers: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return ("the learner", *self.workers) if self.learner else self.workers


def cards(config: Config, environ: Mapping[str, str] = os.environ) -> list[Card]:
    """Returns the GPUs of a run, with the learner and the workers that `of_run` places on them."""
    gpus = _gpus()
    found, memory = _devices(config, gpus, environ), {gpu.index: gpu.memory_bytes for gpu in gpus}
    workers: dict[str, list[str]] = {device: [] for device in found}
    for place in _placed(config, found) if found else ():
        workers[place.device or found[0]].append(place.name)
    return [
        Card(device, memory.get(device, 0), number < _learners(config), tuple(workers[device]))
        for number, device in enumerate(found)
    ]


def sharing(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Yields one warning about the GPUs that several roles of a run share, if there are any.

    It says which share of a GPU fits, where the model's config.json is here; and nothing if vLLM has one that does.
    """
    shared = [card for card in cards(config, environ) if len(card.names) > 1]
    divided = _fullest(config, shared, environ)
    vllm = config.rollout.engine == "vllm"
    fits = vllm and divided and divided.least <= config.rollout.gpu_memory_utilization <= divided.each
    if shared and not fits:
        what = "; ".join(
            f"GPU {card.device} is shared by {', '.join(card.names[:-1])} and {card.names[-1]}" for card in shared
        )
        fix = _division(divided) if vllm else f"if they do not fit there{_need(divided)}, {FEWER}"
        yield Problem("rollout.workers", what, fix)


def refusals(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Yields that vLLM's workers of one GPU would take more than all of it, so that one of them could not start.

    Where no service is embedded, workers may be elsewhere, on GPUs that nobody knows here.
    """
    if config.rollout.engine != "vllm" or EMBEDDED not in (config.redis.url, config.store.url):
        return
    share = config.rollout.gpu_memory_utilization
    full = [card for card in cards(config, environ) if len(card.workers) * share > 1]
    if full:
        shared = "; ".join(f"{len(card.workers)} workers share GPU {card.device}" for card in full)
        what = f"is {share:g} of a GPU, and {shared}"
        yield Problem("rollout.gpu_memory_utilization", what, _division(_fullest(config, full, environ)))


def _fullest(config: Config, shared: Sequence[Card], environ: Mapping[str, str]) -> SharedCard | None:
    """Returns how the GPU that leaves workers least is divided; None if it cannot be reckoned on this machine."""
    if not shared:
        return None
    try:
        shape = model_shape(config, environ=environ)
    except ConfigError:
        return None
    learner, worker = learner_memory(config, shape, config.learner.ranks, "cuda"), worker_memory(config, shape)
    divided = [
        shared_card(config, learner if card.learner else None, worker, card.memory, len(card.workers))
        for card in shared
        if card.memory and card.workers
    ]
    return min(divided, key=lambda one: one.each, default=None)


def _division(divided: SharedCard | None) -> str:
    """Says what each vLLM worker may take of its GPU, or that there must be fewer of them."""
    if divided is None:
        return f"set rollout.gpu_memory_utilization to each worker's part of what the others leave free; or {FEWER}"
    if divided.suffices:
        shares = f"{divided.each:.2f} or less, and {divided.least:.2f} or more"
        return f"set rollout.gpu_memory_utilization to {shares}; or {FEWER}"
    return f"{FEWER}: {divided.each:.2f} of the GPU is left for each of these, and each needs {divided.least:.2f}"


def _need(divided: SharedCard | None) -> str:
    """Says what an engine without a share takes of its GPU."""
    if divided is None:
        return ""
    return f" (each worker takes up to {divided.least:.0%} of it, and {divided.each:.0%} is left for each)"


def _gpus() -> list[machine.Gpu]:
    """Returns the GPUs of this machine. Without a torch for them, no driver is asked."""
    return machine.gpus() if machine.torch_cuda() else []


def _devices(config: Config, gpus: Sequence[machine.Gpu], environ: Mapping[str, str]) -> list[str]:
    """Returns which of `gpus` are the run's, as CUDA_VISIBLE_DEVICES names them."""
    return machine.devices(config.rollout.engine, gpus, machine.torch_cuda(), environ)


def _learners(config: Config) -> int:
    """Returns how many GPUs the learner takes."""
    return 0 if config.learner.device == "cpu" else config.learner.ranks
