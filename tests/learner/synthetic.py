"""Tiny models and made-up groups for tests of the learner."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from echo_queue.records import Group, Observed, Sample, Span

VOCABULARY = 40


def tiny_model(seed: int = 0, **settings: Any) -> PreTrainedModel:
    """Two layers of width 32, sharing heads; large initial weights, so that outputs differ visibly."""
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "initializer_range": 0.2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(seed)
    model: PreTrainedModel = Qwen3ForCausalLM(Qwen3Config(**values | settings)).eval()
    return model


def sample(tokens: Sequence[int], reward: float, version: int = 0, logprob: float = -1.0) -> Sample:
    length = len(tokens)
    return Sample(np.array(tokens, np.int32), np.full(length, logprob, np.float32), (Span(0, version),), reward, "stop")


def with_observed(item: Group, *observed: Sequence[tuple[int, int]]) -> Group:
    """`item` with samples in which the environment wrote these ranges."""
    samples = []
    for one, ranges in zip(item.samples, observed, strict=True):
        logprobs = one.logprobs.copy()
        for start, end in ranges:
            logprobs[start:end] = 0
        samples.append(replace(one, logprobs=logprobs, observed=tuple(Observed(*part) for part in ranges)))
    return replace(item, samples=tuple(samples))


def group(
    index: int = 0, prompt: int = 5, lengths: Sequence[int] = (4, 6, 3), rewards: Sequence[float] = (1, 0, 0)
) -> Group:
    """A group of random tokens: `prompt` of them shared, then one sample per length."""
    draw = np.random.default_rng(index)
    samples = tuple(
        sample(draw.integers(0, VOCABULARY, length).tolist(), reward, logprob=float(-draw.uniform(0.5, 5)))
        for length, reward in zip(lengths, rewards, strict=True)
    )
    tokens = draw.integers(0, VOCABULARY, prompt).astype(np.int32)
    return Group(f"set/0/{index}", "set", 0, index, 1, "worker", 1, tokens, samples)
