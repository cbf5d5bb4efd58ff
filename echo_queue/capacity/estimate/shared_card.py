"""What workers find on a GPU that the learner, or other workers, are on as well.

vLLM takes a share of the whole card, `rollout.gpu_memory_utilization`, whatever is free, and ends where it is not. The
`transformers` engine takes what it needs as its samples grow.
"""

import math
from dataclasses import dataclass

from echo_queue.capacity.estimate.learner_memory import CONTEXT, LearnerMemory
from echo_queue.capacity.estimate.worker_memory import WorkerMemory
from echo_queue.config import Config
from echo_queue.documents import printed
from echo_queue.models.devices import usable

VLLM_BESIDES = 2_000_000_000
"""Bytes that vLLM takes beside weights and key-value cache: the context, the graphs that it captures, and the
activations of one step. It is assumed, not measured."""
HUNDREDTHS = 100


@printed("suffices")
@dataclass(frozen=True)
class SharedCard:
    """Shares of a GPU, in hundredths. What is needed is rounded up, and what is left down."""

    learner: float
    """The learner needs this share."""
    each: float
    """The learner leaves this share to each of `workers`, with a margin of the card free; 0 if nothing."""
    least: float
    """A worker needs this share: with vLLM for weights, the cache of one sample at its longest, and what vLLM takes for
    itself; else for weights and the cache of all its samples."""
    workers: int

    @property
    def suffices(self) -> bool:
        """Returns whether what is left is enough for each worker."""
        return self.least <= self.each


def learner_needs(config: Config, learner: LearnerMemory) -> int:
    """Returns the bytes that the learner needs of a GPU with the activation checkpointing of the configuration."""
    return learner.checkpointed_needed if config.learner.activation_checkpointing == "full" else learner.needed


def worker_needs(config: Config, worker: WorkerMemory) -> int:
    """Returns the least bytes of a GPU with which a worker runs."""
    if config.rollout.engine == "transformers":
        return worker.engine + CONTEXT
    one = worker.kv_per_token * (config.model.max_prompt_tokens + config.model.max_new_tokens)
    return worker.weights + one + VLLM_BESIDES


def shared_card(
    config: Config, learner: LearnerMemory | None, worker: WorkerMemory, memory: int, workers: int
) -> SharedCard:
    """Returns how `workers` and the learner divide a GPU of so many bytes; `learner`: None if it is elsewhere."""
    taken = learner_needs(config, learner) if learner else 0
    left = (usable(memory) - taken) / memory / workers
    return SharedCard(_up(taken / memory), max(0.0, _down(left)), _up(worker_needs(config, worker) / memory), workers)


def _up(share: float) -> float:
    return math.ceil(share * HUNDREDTHS) / HUNDREDTHS


def _down(share: float) -> float:
    return math.floor(share * HUNDREDTHS) / HUNDREDTHS
