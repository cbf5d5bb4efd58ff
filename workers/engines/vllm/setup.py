"""Opens vLLM in this process, with weights that can be replaced in place."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from echo_queue.errors import ConfigError, Problem

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
"""vLLM runs in this process, with the model runner whose sampler can be replaced, without its own log and without
reporting usage."""
CPU_BLOCK = 32
"""Tokens per block of the cache on a CPU, where with vLLM's default, 128, no short prompt would be shared."""
CPU_CACHE_BYTES = 4 << 30
"""The largest key-value cache on a CPU, where it has the size that all samples need (unless VLLM_CPU_KVCACHE_SPACE)."""


@dataclass(frozen=True)
class Capacity:
    """Room for `samples` at once, each of up to `tokens` with its prompt."""

    samples: int
    tokens: int
    dtype: str
    gpu_memory_utilization: float
    """The share of a GPU's memory for weights, activations and the key-value cache."""


def open_vllm(folder: str, capacity: Capacity, stats: bool) -> Any:
    """Opens an `LLMEngine` that serves `folder`, without a tokenizer. Raises `ConfigError` if vLLM refuses it.

    `stats`: the engine keeps metrics, in prometheus_client's default registry.
    """
    os.environ |= ENVIRONMENT
    logging.getLogger("vllm").setLevel(logging.WARNING)
    _give_llvmlite_attributes()
    try:
        from vllm.v1.engine.llm_engine import LLMEngine
    except ImportError as error:
        fix = 'install it as docs/engines.md says, or set rollout.engine = "transformers"'
        raise ConfigError(Problem("rollout.engine", f"vLLM cannot be imported here: {error}", fix)) from None
    try:
        config = _configuration(folder, capacity, stats)
        with _plain_weights(tied=config.model_config.hf_text_config.tie_word_embeddings):
            vllm = LLMEngine.from_vllm_config(config, disable_log_stats=not stats)
        _try_out(vllm)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(_refusal(folder, _last_line(error))) from error
    return vllm


def _refusal(folder: str, said: str) -> Problem:
    """Returns the problem of a model that vLLM does not serve, or has no room for on its GPU."""
    what = f"vLLM does not serve {folder}: {said}"
    if any(word in said for word in ("gpu_memory_utilization", "GPU memory utilization", "out of memory")):
        fix = "name the share of the GPU that the learner and other workers leave free for this one"
        return Problem("rollout.gpu_memory_utilization", what, fix)
    return Problem("rollout.engine", what, "choose another model or engine")


def _configuration(folder: str, capacity: Capacity, stats: bool) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    on_cpu = current_platform.is_cpu()
    arguments = EngineArgs(
        model=folder,
        dtype=capacity.dtype,
        max_model_len=capacity.tokens,
        max_num_seqs=capacity.samples,
        block_size=CPU_BLOCK if on_cpu else None,
        gpu_memory_utilization=capacity.gpu_memory_utilization,
        enforce_eager=on_cpu,  # compiling would take longer than running a small model
        enable_prefix_caching=True,
        async_scheduling=False,  # a step returns its own tokens, and weights change between two
        skip_tokenizer_init=True,
        generation_config="vllm",  # our own sampler draws
        disable_log_stats=not stats,
        use_tqdm_on_load=False,
    )
    config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    if on_cpu and config.cache_config.kv_cache_memory_bytes is None:
        config.cache_config.kv_cache_memory_bytes = min(_cache_bytes(config, capacity), CPU_CACHE_BYTES)
    return config


def _cache_bytes(config: Any, capacity: Capacity) -> int:
    """Returns the bytes of keys and values for all samples at their longest, in whole blocks, plus one block each."""
    model, parallel = config.model_config, config.parallel_config
    token = 2 * model.get_num_layers(parallel) * model.get_num_kv_heads(parallel) * model.get_head_size()
    blocks = capacity.samples * (-(-capacity.tokens // CPU_BLOCK) + 1)
    return int(blocks * CPU_BLOCK * token * model.dtype.itemsize)


def _try_out(vllm: Any) -> None:
    """Generates one token: a missing kernel of vLLM shows only then, and the next token comes faster."""
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input

    try:
        vllm.add_request("trial", tokens_input([0]), SamplingParams(max_tokens=1, detokenize=False))
        while vllm.has_unfinished_requests():
            vllm.step()
    except RuntimeError:
        vllm.engine_core.shutdown()
        raise


@contextmanager
def _plain_weights(tied: bool) -> Iterator[None]:
    """Keeps vLLM from packing the weights of linear layers on a CPU: new weights would never reach the packed copies.

    Only the order of the weights in memory is changed, which makes them as fast. The order of an embedding that is only
    looked up stays, unless the embedding is `tied` to the output layer.
    """
    from vllm.model_executor.layers import utils

    packing = utils.dispatch_cpu_unquantized_gemm
    utils.dispatch_cpu_unquantized_gemm = partial(_keep, tied)
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = packing


def _keep(tied: bool, layer: Any, remove_weight: bool) -> None:
    """Replaces vLLM's function that packs a layer's weight."""
    looked_up = type(layer).__name__ == "VocabParallelEmbedding" and not tied
    if layer.weight.ndim == 2 and not looked_up:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    weight = layer.weight.detach()  # a plain tensor: vLLM's own class goes through Python at every call
    layer.cpu_linear = lambda x, _, bias: torch.nn.functional.linear(x, weight, bias)


def _give_llvmlite_attributes() -> None:
    """Gives llvmlite's library a `__dict__`: vLLM asks every module for it, and the library would return a function."""
    ffi: Any = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        ffi.lib._fntab.setdefault("__dict__", {})


def _last_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[-1]
