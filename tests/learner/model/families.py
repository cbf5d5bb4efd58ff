"""A tiny model of each family that the learner trains, with the settings that its public models have."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.learner.synthetic import VOCABULARY

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 256,
    "initializer_range": 0.2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
WINDOW = 4
"""Shorter than the prompts and than the samples of the tests."""
SLIDING = {"sliding_window": WINDOW}
QWEN = SLIDING | {"use_sliding_window": True, "max_window_layers": 1}
SCALED = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED |= {"original_max_position_embeddings": 64}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}

DENSE: Mapping[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_parameters": SCALED, "attention_bias": True, "mlp_bias": True},
    "qwen2": {"model_type": "qwen2"},
    "qwen2 sliding": {"model_type": "qwen2"} | QWEN,
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "qwen3 sliding": {"model_type": "qwen3"} | QWEN,
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral sliding": {"model_type": "mistral"} | SLIDING,
    "gemma": {"model_type": "gemma"},
    "gemma2": {"model_type": "gemma2", "query_pre_attn_scalar": 5} | SLIDING | CAPS,
    "gemma3": {"model_type": "gemma3_text", "query_pre_attn_scalar": 5} | SLIDING
    | {"layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {"model_type": "phi3"},
    "phi3 sliding": {"model_type": "phi3", "partial_rotary_factor": 0.5} | SLIDING,
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {"model_type": "olmo3", "layer_types": ["sliding_attention", "full_attention"]} | SLIDING,
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0]},
    "smollm3 sliding": {"model_type": "smollm3", "no_rope_layers": [1, 0], "use_sliding_window": True} | SLIDING,
}  # fmt: skip
SPARSE: Mapping[str, dict[str, Any]] = {
    "qwen3_moe": {
        "model_type": "qwen3_moe", "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "norm_topk_prob": True, "output_router_logits": True,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2} | SLIDING,
    "gpt_oss": {"model_type": "gpt_oss", "num_local_experts": 5, "num_experts_per_tok": 2} | SLIDING,
}  # fmt: skip
FAMILIES = DENSE | SPARSE


def settings_of(family: str, **settings: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(**SIZES | FAMILIES[family] | settings)


def family_model(family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **settings: Any) -> PreTrainedModel:
    """Random weights, biases, norms and sinks included, so that outputs differ visibly."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(settings_of(family, **settings), dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or not parameter.any():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()
