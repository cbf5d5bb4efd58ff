"""Opens vLLM as an in-process engine, with weights that can be renewed in place."""

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
"""In this process; the model runner whose sampler can be replaced; our log, not vLLM's own; nobody is told."""
CPU_BLOCK = 32
"""Tokens per block of the cache on a CPU, where vLLM's default, 128, would share no short prompt."""
CPU_CACHE_BYTES = 4 << 30
"""The key-value cache takes what all samples need, on a CPU at most so much (VLLM_CPU_KVCACHE_SPACE says otherwise)."""


@dataclass(frozen=True)
class Room:
    """For `samples` at once, each of up to `tokens` with its prompt."""

    samples: int
    tokens: int
    dtype: str


def open_vllm(folder: str, room: Room, stats: bool) -> Any:
    """An `LLMEngine` that serves `folder`, without a tokenizer. Raises `ConfigError` for what vLLM refuses.

    `stats`: it keeps its metrics, in prometheus_client's default registry.
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
        config = _configuration(folder, room, stats)
        with _plain_weights(tied=config.model_config.hf_text_config.tie_word_embeddings):
            vllm = LLMEngine.from_vllm_config(config, disable_log_stats=not stats)
        _try_out(vllm)
    except (ValueError, RuntimeError) as error:
        what = f"vLLM does not serve {folder}: {_last_line(error)}"
        raise ConfigError(Problem("rollout.engine", what, "choose another model or engine")) from error
    return vllm


def _configuration(folder: str, room: Room, stats: bool) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    on_cpu = current_platform.is_cpu()
    arguments = EngineArgs(
        model=folder,
        dtype=room.dtype,
        max_model_len=room.tokens,
        max_num_seqs=room.samples,
        block_size=CPU_BLOCK if on_cpu else None,
        enforce_eager=on_cpu,  # compiling takes longer here than a small model runs
        enable_prefix_caching=True,
        async_scheduling=False,  # a step returns its own tokens, and weights change between two
        skip_tokenizer_init=True,
        generation_config="vllm",  # how to draw is our own affair
        disable_log_stats=not stats,
        use_tqdm_on_load=False,
    )
    config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    if on_cpu and config.cache_config.kv_cache_memory_bytes is None:
        config.cache_config.kv_cache_memory_bytes = min(_cache_bytes(config, room), CPU_CACHE_BYTES)
    return config


def _cache_bytes(config: Any, room: Room) -> int:
    """Of keys and values for all samples at their longest, in whole blocks, and one block more for each."""
    model, parallel = config.model_config, config.parallel_config
    token = 2 * model.get_num_layers(parallel) * model.get_num_kv_heads(parallel) * model.get_head_size()
    blocks = room.samples * (-(-room.tokens // CPU_BLOCK) + 1)
    return int(blocks * CPU_BLOCK * token * model.dtype.itemsize)


def _try_out(vllm: Any) -> None:
    """One token: only then does it show what vLLM has no kernel for; and the next one comes faster."""
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
    """On a CPU, vLLM packs the weights of linear layers for its kernels, and new weights would never reach the copies.

    Here they stay what they are, but for their order in memory, which makes them as fast; not so an embedding that is
    only looked up, unless it is `tied` to the output layer.
    """
    from vllm.model_executor.layers import utils

    packing = utils.dispatch_cpu_unquantized_gemm
    utils.dispatch_cpu_unquantized_gemm = partial(_keep, tied)
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = packing


def _keep(tied: bool, layer: Any, remove_weight: bool) -> None:
    looked_up = type(layer).__name__ == "VocabParallelEmbedding" and not tied
    if layer.weight.ndim == 2 and not looked_up:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    weight = layer.weight.detach()  # a plain tensor: vLLM's own kind takes a way round through Python at every call
    layer.cpu_linear = lambda x, _, bias: torch.nn.functional.linear(x, weight, bias)


def _give_llvmlite_attributes() -> None:
    """vLLM asks all that is imported for its `__dict__`; llvmlite's library answers every name with a function."""
    ffi: Any = sys.modules.get("llvmlite.binding.ffi")
    if ffi is not None:
        ffi.lib._fntab.setdefault("__dict__", {})


def _last_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[-1]
