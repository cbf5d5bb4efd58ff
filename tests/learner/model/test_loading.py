"""The learner finds out without a model's weights whether it takes the model's architecture."""

from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from echo_queue.errors import ConfigError
from learner.model.loading import check_architecture

SMALL: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
}  # fmt: skip
LARGE: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12_288,
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        LlamaConfig(**SMALL),
        Qwen2Config(**SMALL),
        Qwen3Config(**SMALL, tie_word_embeddings=True),
        Qwen3Config(**SMALL, tie_word_embeddings=False),
        Qwen3Config(**(SMALL | {"num_hidden_layers": 1})),
        Qwen3MoeConfig(**SMALL, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2),
        MistralConfig(**SMALL, sliding_window=None),
        Qwen3Config(**LARGE),
    ],
    ids=lambda settings: f"{type(settings).__name__} {settings.hidden_size}",
)
def test_full_attention_with_plain_output_embeddings_is_taken(settings: PretrainedConfig) -> None:
    before = torch.get_rng_state()
    check_architecture(settings)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (Gemma2Config(**SMALL), "layers of sliding_attention"),
        (Gemma2Config(**SMALL, layer_types=["full_attention"] * 4), "softcap"),
        (
            Gemma2Config(**SMALL, layer_types=["full_attention"] * 4, attn_logit_softcapping=None),
            "plain output embeddings",
        ),
        (
            Qwen3Config(**SMALL, use_sliding_window=True, sliding_window=4, max_window_layers=0),
            "layers of sliding_attention",
        ),
        (MistralConfig(**SMALL, sliding_window=4), "sliding_window = 4"),
        (GraniteConfig(**SMALL, logits_scaling=8.0), "plain output embeddings"),
        (CohereConfig(**SMALL, logit_scale=0.25), "plain output embeddings"),
    ],
    ids=["gemma 2", "soft cap of attention", "soft cap of logits", "qwen 3", "mistral", "granite", "cohere"],
)
def test_an_architecture_that_would_come_out_wrong_is_refused_with_the_reason(
    settings: PretrainedConfig, what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        check_architecture(settings)
