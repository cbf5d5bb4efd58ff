"""Makes the engine that the configuration names. An engine that is not used is not imported."""

from collections.abc import Callable, Sequence

from echo_queue.config import Config
from echo_queue.records import Version
from workers.engines.protocol import Engine, Sampling

Maker = Callable[[Config, str, Version, Sequence[int]], Engine]
"""Makes an engine as `create` does."""


def create(config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> Engine:
    """Makes the engine of `config.rollout.engine`, serving the weights in `folder` (or hub name) as `version`.

    `stop_tokens`: those of the tokenizer.
    """
    rollout = config.rollout
    longest = config.model.max_prompt_tokens + config.model.max_new_tokens
    if rollout.engine == "http":
        return _http(config, folder, version, longest, stop_tokens)
    if rollout.engine == "vllm":
        from workers.engines.vllm.engine import VllmEngine
        from workers.engines.vllm.setup import Capacity

        samples = rollout.concurrent_groups * rollout.group_size
        capacity = Capacity(samples, longest, config.model.dtype, rollout.gpu_memory_utilization)
        return VllmEngine(folder, version, capacity, stop_tokens, rollout.metrics_port)
    from workers.engines.transformers.engine import TransformersEngine

    return TransformersEngine(folder, version, config.model.dtype, longest, stop_tokens)


def _http(config: Config, folder: str, version: Version, longest: int, stop_tokens: Sequence[int]) -> Engine:
    from echo_queue.connections.secrets import engine_key
    from workers.engines.http.engine import HttpEngine
    from workers.engines.http.server_weights import ServerAccess

    rollout, http = config.rollout, config.rollout.http
    assert http.weights_dir is not None  # the configuration was checked
    samples = rollout.concurrent_groups * rollout.group_size
    access = ServerAccess(http.url, engine_key(), http.weights_dir, http.deadline_s, http.checksums, samples)
    return HttpEngine(
        folder,
        version,
        access,
        dtype=config.model.dtype,
        longest=longest,
        trial=Sampling(rollout.temperature, rollout.top_p),
        stop_tokens=stop_tokens,
    )
