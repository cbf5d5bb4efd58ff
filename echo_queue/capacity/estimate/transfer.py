"""Bytes of checkpoints and publications, and how long a publication takes to reach the workers (T_bcast).

The rates are those that docs/weights.md, "What a delta costs", has measured on one thread of a CPU, the lower ends.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from echo_queue.capacity.estimate.learner_memory import BYTES, FLOAT32
from echo_queue.capacity.estimate.lora import lora_shape, trained_parameters
from echo_queue.config import Config
from echo_queue.documents import printed
from echo_queue.models.shape import ModelShape
from echo_queue.weights.coding import Word, chosen

BYTES_PER_CHANGE: dict[Word, dict[float, float]] = {
    "fast": {0.008: 1.31, 0.023: 1.12, 0.064: 0.95, 0.35: 0.73, 0.85: 0.67},
    "small": {0.008: 0.94, 0.023: 0.81, 0.05: 0.73, 0.064: 0.95, 0.35: 0.73, 0.85: 0.67},
}
"""bfloat16: share of changed values → bytes for each of them, by `weights.coding` (`python -m benchmarks.delta`; 0.05
and 0.85 of normally distributed weights). Above 0.05 both are the same."""
FLOAT32_DELTA_BYTES = 2.27
"""float32: nearly every value changes with an update; bytes for each, at lr 1e-4."""
LORA_DELTA_BYTES = {"float32": 2.65, "bfloat16": 0.63}
"""LoRA: bytes for each value of the adapters, of which an update changes most (docs/lora.md, lr 1e-4)."""
ANCHOR_BYTES = {"float32": 3.33, "bfloat16": 1.33}
"""Bytes for each value of an anchor, measured with `echo_queue.weights.delta.encode` on 8 million normally distributed
values."""
WORTHWHILE = 0.9
"""A delta that is not smaller than this share of an anchor is published as an anchor (docs/weights.md, "Routes")."""
ENCODE_BYTES_PER_S = {"fast": 1.4e9, "small": 0.5e9}
APPLY_BYTES_PER_S = {"fast": 2.0e9, "small": 0.65e9}
"""Bytes of weights per second that one thread encodes and applies, digests included, at 2.3 % changed values."""
MERGE_BYTES_PER_S = 0.6e9
"""Bytes of bfloat16 matrices per second into which one thread merges adapters of rank 32 (docs/lora.md)."""


@printed("total_s")
@dataclass(frozen=True)
class Broadcast:
    """One publication: its bytes and the seconds of its three steps, which overlap in part; `total_s` adds them up."""

    delta_bytes: int
    encode_s: float
    transfer_s: float
    apply_s: float

    @property
    def total_s(self) -> float:
        return self.encode_s + self.transfer_s + self.apply_s


def checkpoint_bytes(config: Config, shape: ModelShape) -> int:
    """Returns the bytes of a checkpoint's tensors: masters and two moments in float32 (`learner.model.policy`)."""
    return 3 * FLOAT32 * trained_parameters(config.model.lora, shape)


def weight_bytes(config: Config, shape: ModelShape) -> int:
    """Returns the bytes of the weights in the type in which they are served."""
    return BYTES[config.model.dtype] * shape.total


def published_bytes(config: Config, shape: ModelShape) -> int:
    """Returns the bytes of what is published of a version, before it is encoded: the weights, or the adapters."""
    return BYTES[config.model.dtype] * trained_parameters(config.model.lora, shape)


def anchor_bytes(config: Config, shape: ModelShape) -> int:
    """Returns the bytes of a version that is stored whole."""
    return round(ANCHOR_BYTES[config.model.dtype] * trained_parameters(config.model.lora, shape))


def coding_of(config: Config, shape: ModelShape, change: float, link_gbit: float) -> Word:
    """Returns how deltas are coded: as configured, or as a learner with one thread for it would choose at this link."""
    if config.weights.coding != "auto":
        return config.weights.coding
    uploading_s = delta_bytes(config, shape, change, "fast") * 8 / (link_gbit * 1e9)
    return chosen("fast", uploading_s, published_bytes(config, shape) / ENCODE_BYTES_PER_S["fast"], threads=1)


def delta_bytes(config: Config, shape: ModelShape, change: float, coding: Word) -> int:
    """Returns the bytes of a publication of which a share of `change` of the values has changed.

    float32 and LoRA ignore `change`: every value changes, or most do. A delta that is not worth it is an anchor.
    """
    if config.model.lora.rank:
        delta = LORA_DELTA_BYTES[config.model.dtype] * trained_parameters(config.model.lora, shape)
    elif config.model.dtype == "float32":
        delta = FLOAT32_DELTA_BYTES * shape.total
    else:
        delta = bytes_per_change(change, coding) * change * shape.total
    anchor = anchor_bytes(config, shape)
    return round(delta) if delta < WORTHWHILE * anchor else anchor


def bytes_per_change(change: float, coding: Word) -> float:
    """Returns the bytes for each changed bfloat16 value, between measured shares by the logarithm of the share."""
    measured = BYTES_PER_CHANGE[coding]
    shares = sorted(measured)
    if change <= shares[0]:
        return measured[shares[0]]
    for low, high in pairwise(shares):
        if change <= high:
            place = math.log(change / low) / math.log(high / low)
            return measured[low] + place * (measured[high] - measured[low])
    return measured[shares[-1]]


def broadcast(config: Config, shape: ModelShape, change: float, link_gbit: float) -> Broadcast:
    """Returns the time of one publication if the learner and every worker have a link of `link_gbit`.

    A delta of several parts is announced, so workers fetch it while it is uploaded, in F/B together; one of a single
    part takes F/B to the store and F/B from it (docs/weights.md, "While it is uploaded").
    """
    coding = coding_of(config, shape, change, link_gbit)
    size, published = delta_bytes(config, shape, change, coding), published_bytes(config, shape)
    crossings = 1 if published > config.weights.part_bytes else 2
    transfer_s = crossings * size * 8 / (link_gbit * 1e9)
    apply_s = published / APPLY_BYTES_PER_S[coding] + merge_s(config, shape)
    return Broadcast(size, published / ENCODE_BYTES_PER_S[coding], transfer_s, apply_s)


def merge_s(config: Config, shape: ModelShape) -> float:
    """Returns the seconds in which a worker, on all of its threads, merges adapters into the base model."""
    lora = lora_shape(config.model.lora, shape)
    matrices = BYTES["bfloat16"] * lora.adapted if lora else 0
    return matrices / (MERGE_BYTES_PER_S * config.worker_threads)
