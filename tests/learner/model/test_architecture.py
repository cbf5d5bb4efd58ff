"""The learner finds out without a model's weights whether it takes the model's architecture."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    CohereConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from echo_queue.errors import ConfigError
from learner.batch.packing import LayerAttention
from learner.model.architecture import check_architecture
from learner.model.attention.rectangles import Rectangles
from tests.learner.model.families import settings_of

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
        (
            Qwen3NextConfig(**SMALL, linear_num_key_heads=2, linear_num_value_heads=2, num_experts=4),
            "layers of linear_attention",
        ),
        (GraniteConfig(**SMALL, logits_scaling=8.0), "output embeddings as they are known"),
        (CohereConfig(**SMALL, logit_scale=0.25), "output embeddings as they are known"),
    ],
    ids=["linear attention", "granite", "cohere"],
)
def test_an_architecture_that_would_come_out_wrong_is_refused_with_the_reason(
    settings: PretrainedConfig, what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        check_architecture(settings)


@pytest.mark.parametrize("lost", ["window", "cap", "sinks"])
def test_what_the_attention_leaves_out_shows(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check notices by the results alone, on models whose layers have each of these."""
    attend = Rectangles.attend

    def careless(self: Rectangles, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        return attend(self, query, key, value, layer._replace(**{lost: None}))

    monkeypatch.setattr(Rectangles, "attend", careless)
    family = {"window": "mistral sliding", "cap": "gemma2", "sinks": "gpt_oss"}[lost]
    settings = settings_of(family)
    with pytest.raises(ConfigError, match="as they are known"):
        check_architecture(settings)
