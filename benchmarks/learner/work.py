"""The work that is measured: models of real shapes with random weights, and batches of random tokens.

MFU = FLOP / seconds / the device's peak in dense bfloat16. FLOP = 6 · (weights of the layers · packed tokens + weights
of the head · drawn tokens) + 12 · layers · heads · head width · pairs of query and key that the mask allows. Weights
that are not trained count 4 times instead of 6, and experts as often as tokens are routed to them. A shared prompt
counts once; what activation checkpointing computes again, and the merging of adapters, count as nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from echo_queue.records import Group, Sample, Span


@dataclass(frozen=True)
class Shape:
    """The sizes of a model by its configuration, and how it is trained; with `rank` above 0, adapters alone.

    `layers`: those of the real model, where `sizes` has fewer. `micro_tokens`: the size of a micro-batch, unless it is
    given; all weights of 8B do not fit one card of 141 GB with more.
    """

    sizes: Mapping[str, Any]
    rank: int = 0
    layers: int = 0
    micro_tokens: int = 16_384

    def cut(self, layers: int | None) -> "Shape":
        """Returns the shape with another number of layers; None leaves it as it is."""
        if layers is None:
            return self
        whole = self.layers or self.sizes["num_hidden_layers"]
        return replace(self, sizes={**self.sizes, "num_hidden_layers": layers}, layers=whole)

    def __str__(self) -> str:
        """The number of layers, where it is not that of the real model."""
        return f", {self.sizes['num_hidden_layers']} of {self.layers} layers" if self.layers else ""


TINY = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 512,
        "tie_word_embeddings": True}  # fmt: skip
QWEN3 = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}
QWEN3_8B = QWEN3 | {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
                    "intermediate_size": 12_288, "tie_word_embeddings": False}  # fmt: skip
FAKE = {
    "fake": Shape(TINY, micro_tokens=64),
    "fake LoRA": Shape(TINY, rank=4, micro_tokens=64),
    "fake MoE": Shape(
        TINY | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        micro_tokens=64,
    ),
}
REAL = {
    "0.6B": Shape(
        QWEN3 | {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072,
                 "tie_word_embeddings": True}
    ),
    "4B": Shape(
        QWEN3 | {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728,
                 "tie_word_embeddings": True}
    ),
    "8B": Shape(QWEN3_8B, micro_tokens=8_192),
    "8B LoRA": Shape(QWEN3_8B, rank=32),
    "30B-A3B": Shape(
        QWEN3 | {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 32,
                 "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
                 "num_experts_per_tok": 8, "norm_topk_prob": True, "tie_word_embeddings": False},
        layers=48,
    ),
}  # fmt: skip
"""Qwen3's shapes. Of 30B-A3B, six layers need as much memory for training as 4B."""
SHAPES = {"fake": FAKE, "real": REAL}


@dataclass(frozen=True)
class Mix:
    """A batch of `groups` prompts with `samples` each: P tokens of prompt, T of completion."""

    prompt: int
    completion: int
    groups: int
    samples: int

    @property
    def lengths(self) -> str:
        return f"{self.prompt}+{self.completion}"

    def __str__(self) -> str:
        return f"{self.groups}x{self.samples} of {self.lengths}"

    @property
    def drawn(self) -> int:
        return self.groups * self.samples * self.completion

    def flop(self, model: PreTrainedModel) -> float:
        """Returns the FLOP of forward and backward pass, every prompt once."""
        settings = model.config.get_text_config()
        shared, own, samples = self.prompt - 1, self.completion, self.samples
        tokens = self.groups * (shared + samples * own)
        layers = sum(_flop(p, settings) for name, p in model.named_parameters() if ".layers." in name and p.ndim >= 2)
        head = _flop(model.get_output_embeddings().weight, settings)
        return float(layers * tokens + head * self.drawn + 12 * self.attention(model))

    def attention(self, model: PreTrainedModel) -> float:
        """Returns layers · heads · width · pairs of query and key that the mask allows, every prompt once."""
        settings = model.config.get_text_config()
        shared, own, samples = self.prompt - 1, self.completion, self.samples
        pairs = self.groups * (shared * (shared + 1) / 2 + samples * (own * shared + own * (own + 1) / 2))
        return float(settings.num_hidden_layers * settings.num_attention_heads * settings.head_dim * pairs)

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


def random_model(shape: Shape, where: torch.device) -> PreTrainedModel:
    """Returns a model of random weights, made on the device: in float32, or in bfloat16 if it is not trained."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if shape.rank else torch.float32
    with torch.device(where):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape.sizes), dtype=dtype)
    model.eval()
    return model


def _flop(weight: Tensor, settings: PretrainedConfig) -> float:
    """Returns the FLOP of forward and backward pass for each token that is multiplied with the weights of a layer."""
    routed = settings.num_experts_per_tok / settings.num_experts if weight.ndim == 3 else 1.0
    return (6 if weight.requires_grad else 4) * routed * weight.numel()
