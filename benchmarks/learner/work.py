"""The work that is measured: models of real shapes with random weights, and batches of random tokens.

MFU = FLOP / seconds / the device's peak in dense bfloat16. FLOP = 6 · (weights of the layers · packed tokens + weights
of the head · drawn tokens) + 12 · layers · heads · head width · pairs of query and key that the mask allows. A shared
prompt counts once, and what activation checkpointing computes again counts as nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from echo_queue.records import Group, Sample, Span

SHAPES: dict[str, dict[str, Any]] = {
    "fake": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 16, "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": True},
    "0.6B": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
             "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151_936, "tie_word_embeddings": True},
    "4B": {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151_936, "tie_word_embeddings": True},
    "8B": {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 128, "intermediate_size": 12_288, "vocab_size": 151_936, "tie_word_embeddings": False},
}  # fmt: skip
"""Qwen3's shapes."""


@dataclass(frozen=True)
class Mix:
    """A batch of `groups` prompts with `samples` each: P tokens of prompt, T of completion."""

    prompt: int
    completion: int
    groups: int
    samples: int

    def __str__(self) -> str:
        return f"{self.groups}x{self.samples} of {self.prompt}+{self.completion}"

    @property
    def drawn(self) -> int:
        return self.groups * self.samples * self.completion

    def flop(self, model: PreTrainedModel) -> float:
        """Returns the FLOP of forward and backward pass, every prompt once."""
        settings = model.config.get_text_config()
        shared, own, samples = self.prompt - 1, self.completion, self.samples
        tokens = self.groups * (shared + samples * own)
        pairs = self.groups * (shared * (shared + 1) / 2 + samples * (own * shared + own * (own + 1) / 2))
        layers = sum(p.numel() for name, p in model.named_parameters() if ".layers." in name and p.ndim >= 2)
        head = settings.vocab_size * settings.hidden_size
        attention = 12 * settings.num_hidden_layers * settings.num_attention_heads * settings.head_dim * pairs
        return float(6 * (layers * tokens + head * self.drawn) + attention)

    def batch(self, vocabulary: int) -> list[Group]:
        """Returns the same random tokens each time, half of every group with a reward."""
        draw = np.random.default_rng(0)
        return [self._group(draw, number, vocabulary) for number in range(self.groups)]

    def _group(self, draw: np.random.Generator, number: int, vocabulary: int) -> Group:
        tokens = draw.integers(0, vocabulary, (self.samples, self.completion), np.int32)
        samples = tuple(
            Sample(row, np.full(self.completion, -9.0, np.float32), (Span(0, 0),), float(place % 2), "stop")
            for place, row in enumerate(tokens)
        )
        prompt = draw.integers(0, vocabulary, self.prompt, np.int32)
        return Group(f"set/0/{number}", "set", 0, number, 1, "worker", 1, prompt, samples)


MIXES = {
    "fake": (Mix(8, 24, 3, 4), Mix(24, 8, 3, 4)),
    "real": (Mix(256, 3840, 2, 8), Mix(2048, 2048, 2, 8), Mix(7168, 1024, 2, 8)),
}


def random_model(sizes: Mapping[str, Any], where: torch.device) -> PreTrainedModel:
    """Returns a model of random weights in float32, made on the device."""
    torch.manual_seed(0)
    with torch.device(where):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(Qwen3Config(**sizes), dtype=torch.float32)
    model.eval()
    return model
