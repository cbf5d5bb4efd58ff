"""The memory of a rollout worker: what its engine holds on its device, and what the worker holds beside it."""

from dataclasses import dataclass

from echo_queue.capacity.estimate.learner_memory import BYTES
from echo_queue.capacity.estimate.lora import lora_shape
from echo_queue.capacity.estimate.transfer import weight_bytes
from echo_queue.config import Config
from echo_queue.documents import printed
from echo_queue.models.shape import ModelShape


@printed("kv_cache", "engine")
@dataclass(frozen=True)
class WorkerMemory:
    """Bytes of one worker; `engine` is on its device, `host` is the staged copy of the weights (docs/weights.md, "Hot
    load"); with LoRA, the adapters, the base model, and the matrices into which they are merged."""

    weights: int
    kv_per_token: int
    tokens_in_flight: int
    beyond_windows: int
    """The keys and values that layers with a window need no more, where the engine drops them."""
    host: int

    @property
    def kv_cache(self) -> int:
        return self.kv_per_token * self.tokens_in_flight - self.beyond_windows

    @property
    def engine(self) -> int:
        return self.weights + self.kv_cache


def worker_memory(config: Config, shape: ModelShape) -> WorkerMemory:
    """Returns the memory of a worker whose samples all are as long as the model allows.

    A token has a key and a value in each layer: 2 · layers · key heads · head_dim (arXiv 2309.06180, §2). With the
    `transformers` engine each sample has its prompt for itself (`workers.engines.transformers.kv_cache`); vLLM's prefix
    cache keeps a group's prompt once. Engines that take all of a device's memory (vLLM) need this much for no sample to
    wait. A layer with a window needs the window of each sample alone, and vLLM keeps no more; the `transformers` engine
    does.
    """
    groups, samples = config.rollout.concurrent_groups, config.rollout.group_size
    prompts = groups * (samples if config.rollout.engine == "transformers" else 1)
    tokens = prompts * config.model.max_prompt_tokens + groups * samples * config.model.max_new_tokens
    weights, lora = weight_bytes(config, shape), lora_shape(config.model.lora, shape)
    staged = weights + BYTES[config.model.dtype] * (lora.parameters + lora.adapted) if lora else weights
    of_layer = 2 * shape.keys * BYTES[config.model.dtype]
    within = groups * samples * shape.window
    dropped = 0 if config.rollout.engine == "transformers" else max(0, tokens - within)
    return WorkerMemory(
        weights=weights,
        kv_per_token=shape.layers * of_layer,
        tokens_in_flight=tokens,
        beyond_windows=shape.sliding_layers * of_layer * dropped,
        host=staged + 2 * config.weights.part_bytes,
    )
