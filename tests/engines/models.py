"""Small models with random weights, far from uniform, so that a wrong position, mask or weight shows."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 150
STOP = 3
LONGEST = 512


def save_model(folder: Path, seed: int, *, tied: bool = True, **settings: Any) -> Path:
    """Two layers, head_dim 32; `STOP` ends a sample unless `settings` say otherwise."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        tie_word_embeddings=tied,
        max_position_embeddings=LONGEST,
        **{
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "eos_token_id": STOP,
            "initializer_range": 0.5,
        }
        | settings,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def open_model(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    return model.eval()


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the model's tensors as a learner publishes them."""
    return {name: parameter.detach() for name, parameter in open_model(folder).named_parameters()}
