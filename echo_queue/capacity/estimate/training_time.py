"""The time of one update (T_train) and of one group's generation, from operations and rates.

- A token costs 6 operations for each weight that it is multiplied with (forward 2, backward 4), and the attention
  12 · layers · heads · head_dim for each pair of a query and a key (Kaplan et al., arXiv 2001.08361, §2.1; Chowdhery et
  al., arXiv 2204.02311, appendix B). Causal attention has half of the pairs of a square.
- With LoRA (`learner.model.lora.merged_linear`) no gradient of a weight is computed, which leaves 4 for each weight;
  each parameter of an adapter costs 4 more: its gradient is two products with the rank. Merging is left out.
- Some settings need forward passes besides, of 2 for each weight and 4 in the attention (`forward_passes`). Activation
  checkpointing of whole layers computes one more in all of them, the head left out (`recomputed_flops`). A share of the
  peak that counts the model's own operations alone (MFU) has it in the time and not in the operations.
- A layer with a window has no pairs beyond it.
- A group's prompt is computed once for all of its samples (`learner.micro_batches`), the head at sampled tokens only.
"""

import math
from dataclasses import dataclass

from echo_queue.capacity.estimate.lora import LoraShape
from echo_queue.config import Config
from echo_queue.models.devices import Device
from echo_queue.models.shape import ATTENTION, MATMUL, ModelShape

FROZEN_MATMUL, ADAPTER = 4, 4
FORWARD_MATMUL, FORWARD_ATTENTION = 2, 4


@dataclass(frozen=True)
class Batch:
    """The tokens of one update: `groups` of `samples`, with prompts and samples of these lengths."""

    groups: int
    samples: int
    prompt_tokens: int
    sample_tokens: int

    @property
    def sampled(self) -> int:
        return self.groups * self.samples * self.sample_tokens


def batch_of(config: Config, mean_tokens: int | None = None) -> Batch:
    """Returns the batch of an update whose samples have `mean_tokens`; None: as many as the model may draw."""
    tokens = mean_tokens or config.model.max_new_tokens
    return Batch(config.learner.batch_groups, config.rollout.group_size, config.model.max_prompt_tokens, tokens)


def flops_per_token(shape: ModelShape, length: int, lora: LoraShape | None = None) -> float:
    """Returns the operations of one token in a causal sequence of `length`: 6·N + 6·layers·heads·head_dim·length, if no
    layer has a window."""
    linear = FROZEN_MATMUL * shape.matmul + ADAPTER * lora.parameters if lora else MATMUL * shape.matmul
    return linear + ATTENTION * shape.queries * _pairs(shape, 0, length) / length


def forward_passes(config: Config) -> float:
    """Returns how many times the tokens of an update pass the model without a gradient.

    They do so once for the KL term's base model, once for M2PO's limit, and for decoupled PPO's proximal policy in all
    mini-batches but the first (`learner.update`). For the anchor `old` they do so once, though tokens of the newest
    version need not in updates of one step, and samples of several versions do so for each (`learner.update`).
    """
    settings = config.learner
    proximal = (settings.mini_batches - 1) / settings.mini_batches if settings.needs_proximal else 0.0
    old = settings.needs_old and (config.staleness.s > 0 or settings.mini_batches > 1)
    return (settings.kl > 0) + settings.needs_second_moment + proximal + old


def flops_of_update(shape: ModelShape, batch: Batch, lora: LoraShape | None = None, forward: float = 0.0) -> float:
    """Returns the operations of one update, each prompt counted once, with `forward` passes besides the training's."""
    prompts = batch.groups * batch.prompt_tokens
    body, head = shape.matmul - shape.embedding, shape.embedding
    pairs = _pairs_of(shape, batch)
    products = body * (prompts + batch.sampled) + head * batch.sampled
    trained = (FROZEN_MATMUL if lora else MATMUL) * products + ATTENTION * shape.queries * pairs
    adapters = ADAPTER * lora.parameters * (prompts + batch.sampled) if lora else 0
    return trained + adapters + forward * (FORWARD_MATMUL * products + FORWARD_ATTENTION * shape.queries * pairs)


def recomputed_flops(config: Config, shape: ModelShape, batch: Batch) -> float:
    """Returns the operations of an update that `full` checkpointing computes again: a forward pass of all layers.

    `selective` keeps the results of products and attention, and computes next to nothing again.
    """
    if config.learner.activation_checkpointing != "full":
        return 0.0
    body = shape.matmul - shape.embedding
    tokens = batch.groups * batch.prompt_tokens + batch.sampled
    return FORWARD_MATMUL * body * tokens + FORWARD_ATTENTION * shape.queries * _pairs_of(shape, batch)


def _pairs_of(shape: ModelShape, batch: Batch) -> float:
    """Returns the pairs of a query and a key of an update, each prompt counted once."""
    of_sample = _pairs(shape, batch.prompt_tokens, batch.sample_tokens)
    return batch.groups * (_pairs(shape, 0, batch.prompt_tokens) + batch.samples * of_sample)


def _pairs(shape: ModelShape, before: int, tokens: int) -> float:
    """Returns the pairs of a query and a key in all layers together, for `tokens` queries that follow `before` more."""

    def up_to(length: int, window: int) -> float:
        return length**2 / 2 if length <= window else window * length - window**2 / 2

    def of_layer(window: int) -> float:
        return up_to(before + tokens, window) - up_to(before, window)

    full = (shape.layers - shape.sliding_layers) * of_layer(before + tokens)
    return full + shape.sliding_layers * of_layer(shape.window)


def t_train_s(flops: float, device: Device, devices: int, mfu: float) -> float:
    """Returns the seconds of one update: its operations / (devices · peak · share of the peak)."""
    return flops / (devices * device.flops * mfu)


def t_gen_s(config: Config, tokens_per_s: float) -> float:
    """Returns the seconds from a group's first token to its last: those of its longest sample, as samples of a group
    are generated at the same time."""
    return config.model.max_new_tokens / tokens_per_s


def generation_s(config: Config, batch: Batch, tokens_per_s: float) -> float:
    """Returns the seconds in which all of `rollout.workers`, each with `rollout.concurrent_groups`, make one batch."""
    at_once = config.rollout.workers * config.rollout.concurrent_groups * batch.samples
    return batch.sampled / (at_once * tokens_per_s)


def workers_needed(config: Config, batch: Batch, tokens_per_s: float, train_s: float) -> int:
    """Returns the fewest workers like the configured ones that make a batch within `train_s`, all being busy."""
    alone_s = generation_s(config, batch, tokens_per_s) * config.rollout.workers
    return max(1, math.ceil(alone_s / train_s))
