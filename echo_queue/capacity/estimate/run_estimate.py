"""Everything that is reckoned of a run before it is started, from its configuration and its model's shape alone."""

import math
from dataclasses import dataclass

from echo_queue.capacity.estimate.lag import Lag, lag
from echo_queue.capacity.estimate.learner_memory import LearnerMemory, learner_memory
from echo_queue.capacity.estimate.lora import lora_shape
from echo_queue.capacity.estimate.shared_card import SharedCard, shared_card
from echo_queue.capacity.estimate.training_time import (
    Batch,
    batch_of,
    flops_of_update,
    flops_per_token,
    forward_passes,
    generation_s,
    recomputed_flops,
    t_gen_s,
    t_train_s,
    workers_needed,
)
from echo_queue.capacity.estimate.transfer import (
    Broadcast,
    anchor_bytes,
    broadcast,
    checkpoint_bytes,
    coding_of,
    delta_bytes,
)
from echo_queue.capacity.estimate.worker_memory import WorkerMemory, worker_memory
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.models.devices import (
    CPU,
    CPU_MFU,
    CPU_THREAD_FLOPS,
    DEFAULT_GPU,
    DEFAULT_MFU,
    Device,
    device,
    learner_is_on_cpu,
)
from echo_queue.models.shape import ModelShape

CHANGES = (0.01, 0.05)
"""Shares of changed values for which the bytes of a delta are always reckoned."""


@dataclass(frozen=True)
class Assumptions:
    """Facts about machines and links that the configuration does not state.

    `device`: "" takes a GPU unless the learner would train on the CPU here. `devices`: one for each rank of the
    learner; None: `learner.ranks`.

    `mfu`: the share of the device's rate; None: `DEFAULT_MFU`, on a CPU `CPU_MFU`. `thread_flops`: a CPU thread's rate.

    `tokens_per_s`: the rate of one sample; None: `rollout.tokens_per_s`. `mean_tokens`: the length of the mean sample;
    None: `model.max_new_tokens`.
    """

    device: str = ""
    devices: int | None = None
    mfu: float | None = None
    link_gbit: float = 1.0
    tokens_per_s: float | None = None
    mean_tokens: int | None = None
    change: float = CHANGES[0]
    thread_flops: float = CPU_THREAD_FLOPS


@dataclass(frozen=True)
class RunEstimate:
    """Bytes, seconds and updates of a run. `deltas`: share of changed values → bytes of a publication. `trained`: the
    number of parameters that are trained."""

    shape: ModelShape
    trained: int
    device: Device
    devices: int
    mfu: float
    batch: Batch
    learner: LearnerMemory
    worker: WorkerMemory
    shared_card: SharedCard | None
    """How the learner's GPU is divided if all workers are on it as well; None where that cannot be: the learner is on a
    CPU or has several GPUs, or the engine asks a server."""
    checkpoint_bytes: int
    anchor_bytes: int
    deltas: dict[float, int]
    flops_per_token: float
    flops_of_update: float
    recomputed_flops: float
    """What activation checkpointing computes again in an update, beside `flops_of_update`."""
    t_train_s: float
    t_gen_s: float
    generation_s: float
    workers_needed: int
    """The fewest workers like the configured ones that make a batch within T_train."""
    idle_share: float
    """The share of its time that the learner waits for the configured workers."""
    broadcast: Broadcast
    lag: Lag
    """The lag with a learner that never waits: one update each T_train."""
    lag_of_these_workers: Lag
    """The lag with one update each T_train, or each time that the workers have made a batch, if that takes longer."""


def estimate(config: Config, shape: ModelShape, assumed: Assumptions | None = None) -> RunEstimate:
    """Returns the estimate. Raises `ConfigError` for an assumption that cannot be."""
    assumed = assumed or Assumptions()
    _check(assumed)
    devices = config.learner.ranks if assumed.devices is None else assumed.devices
    name = assumed.device or (CPU if learner_is_on_cpu(config) else DEFAULT_GPU)
    machine = device(name, config.learner_threads, assumed.thread_flops)
    batch = batch_of(config, assumed.mean_tokens)
    mfu = assumed.mfu or (CPU_MFU if name == CPU else DEFAULT_MFU)
    tokens_per_s = assumed.tokens_per_s or config.rollout.tokens_per_s
    lora = lora_shape(config.model.lora, shape)
    flops = flops_of_update(shape, batch, lora, forward_passes(config))
    recomputed = recomputed_flops(config, shape, batch)
    train_s = t_train_s(flops + recomputed, machine, devices, mfu)
    sent, gen_s = broadcast(config, shape, assumed.change, assumed.link_gbit), t_gen_s(config, tokens_per_s)
    made_s = generation_s(config, batch, tokens_per_s)
    learner = learner_memory(config, shape, devices, "cpu" if name == CPU else "cuda", assumed.change)
    worker, one_card = worker_memory(config, shape), machine.memory and devices == 1 and config.rollout.engine != "http"

    def lag_of(update_s: float) -> Lag:
        bound = config.staleness
        return lag(bound.s, bound.kappa, t_train_s=update_s, t_bcast_s=sent.total_s, t_gen_s=gen_s)

    return RunEstimate(
        shape=shape,
        trained=lora.parameters if lora else shape.total,
        device=machine,
        devices=devices,
        mfu=mfu,
        batch=batch,
        learner=learner,
        worker=worker,
        shared_card=shared_card(config, learner, worker, machine.memory, config.rollout.workers) if one_card else None,
        checkpoint_bytes=checkpoint_bytes(config, shape),
        anchor_bytes=anchor_bytes(config, shape),
        deltas={
            change: delta_bytes(config, shape, change, coding_of(config, shape, change, assumed.link_gbit))
            for change in sorted({*CHANGES, assumed.change})
        },
        flops_per_token=flops_per_token(shape, batch.prompt_tokens + batch.sample_tokens, lora),
        flops_of_update=flops,
        recomputed_flops=recomputed,
        t_train_s=train_s,
        t_gen_s=gen_s,
        generation_s=made_s,
        workers_needed=workers_needed(config, batch, tokens_per_s, train_s),
        idle_share=max(0.0, 1 - train_s / made_s),
        broadcast=sent,
        lag=lag_of(train_s),
        lag_of_these_workers=lag_of(max(train_s, made_s)),
    )


def _check(assumed: Assumptions) -> None:
    shares = {"--mfu": assumed.mfu, "--change": assumed.change}
    rest = {"--devices": assumed.devices, "--link-gbit": assumed.link_gbit, "--tokens-per-s": assumed.tokens_per_s}
    rest["--mean-tokens"] = assumed.mean_tokens
    wrong = [
        Problem(name, f"{value} is no share", "set above 0, at most 1")
        for name, value in shares.items()
        if value is not None and not 0 < value <= 1
    ]
    wrong += [
        Problem(name, f"{value} is not a positive number", "set a positive number")
        for name, value in rest.items()
        if value is not None and not 0 < value < math.inf
    ]
    if wrong:
        raise ConfigError(*wrong)
