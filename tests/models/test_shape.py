"""Parameters are counted to the last one: as the models' publishers and transformers count them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from echo_queue.errors import ConfigError
from echo_queue.models import model_shape, shape_of
from tests.models import MODELS, config, public, shape

BY_HAND = {
    # Embedding + head + layers · (attention + MLP + norms) + last norm.
    "qwen3-0.6b": 151_936 * 1_024 + 28 * (1_024 * 6_144 + 3 * 1_024 * 3_072 + 2 * 1_024 + 256) + 1_024,
    "qwen3-4b": 151_936 * 2_560 + 36 * (2_560 * 10_240 + 3 * 2_560 * 9_728 + 2 * 2_560 + 256) + 2_560,
    "qwen3-8b": 2 * 151_936 * 4_096 + 36 * (4_096 * 10_240 + 3 * 4_096 * 12_288 + 2 * 4_096 + 256) + 4_096,
    "qwen3-30b-a3b": 2 * 151_936 * 2_048
    + 48 * (2_048 * 9_216 + 128 * 2_048 + 128 * 3 * 2_048 * 768 + 2 * 2_048 + 256)
    + 2_048,
}
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 500}
SPARSE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_public_models_have_their_published_sizes(name: str, published: int) -> None:
    assert shape(name).total == BY_HAND[name] == published


def test_a_token_of_a_mixture_uses_its_experts_alone() -> None:
    found = shape("qwen3-30b-a3b")
    assert found.total - found.active == 48 * 120 * 3 * 2_048 * 768
    assert found.active == pytest.approx(3.35e9, rel=0.01)
    assert found.matmul == found.active - found.embedding - 48 * (2 * 2_048 + 256) - 2_048
    assert shape("qwen3-8b").active == shape("qwen3-8b").total


@pytest.mark.parametrize(
    "document",
    [
        public("qwen3-0.6b"),
        public("qwen3-8b"),
        public("qwen3-30b-a3b"),
        SMALL | {"model_type": "qwen3"},
        SMALL | {"model_type": "qwen3", "attention_bias": True, "tie_word_embeddings": True},
        SMALL | {"model_type": "llama"},
        SMALL | {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 24},
        SMALL | {"model_type": "qwen2", "tie_word_embeddings": True},
        SMALL | {"model_type": "mistral"},
        SMALL | SPARSE | {"model_type": "qwen3_moe"},
        SMALL | SPARSE | {"model_type": "qwen3_moe", "mlp_only_layers": [0], "attention_bias": True},
        SMALL | SPARSE | {"model_type": "qwen3_moe", "decoder_sparse_step": 2},
        SMALL | SPARSE | {"model_type": "qwen3_moe", "use_sliding_window": True},
        SMALL | {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
        SMALL | {"model_type": "mistral", "sliding_window": None},
        SMALL | {"model_type": "gemma"},
        SMALL | {"model_type": "gemma", "attention_bias": True, "tie_word_embeddings": False},
        SMALL | {"model_type": "gemma2"},
        SMALL | {"model_type": "gemma2", "attn_logit_softcapping": None},
        SMALL | {"model_type": "gemma3_text", "num_hidden_layers": 8},
        SMALL | {"model_type": "gemma3_text", "sliding_window_pattern": 2, "sliding_window": 512},
        SMALL | {"model_type": "phi3", "rope_scaling": None, "pad_token_id": 0},
        SMALL | {"model_type": "phi3", "sliding_window": 100, "pad_token_id": 0},
        SMALL | {"model_type": "olmo2"},
        SMALL | {"model_type": "olmo3", "num_hidden_layers": 5},
        SMALL | {"model_type": "smollm3", "pad_token_id": 0},
        SMALL
        | {"model_type": "smollm3", "pad_token_id": 0, "num_hidden_layers": 5}
        | {"use_sliding_window": True, "sliding_window": 64},
        SMALL | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        SMALL | {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 24},
    ],
    ids=lambda document: document["model_type"] + f"-{document['hidden_size']}",
)
def test_transformers_builds_as_many_parameters(document: dict[str, Any], tmp_path: Path) -> None:
    settings = AutoConfig.for_model(**document)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings)
    found = shape_of(document, "")
    assert found.total == sum(parameter.numel() for parameter in model.parameters())
    windows = [getattr(layer.self_attn, "sliding_window", None) for layer in model.base_model.layers]
    if document["model_type"] in ("mistral", "mixtral", "phi3"):
        windows = [settings.sliding_window] * len(windows)
    assert found.sliding_layers == sum(window is not None for window in windows)
    assert {found.window} >= {window for window in windows if window is not None}
    settings.save_pretrained(tmp_path)
    written = config(model={"base": str(tmp_path)})
    assert model_shape(written, environ={}) == shape_of(document, ""), "as transformers writes it"


def test_the_model_that_init_builds_needs_no_file() -> None:
    found = model_shape(config(), environ={})
    assert (found.layers, found.hidden, found.tied, found.total) == (4, 128, True, 689_536)


def test_a_hub_model_is_found_in_the_cache(tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--Qwen--Qwen3-4B"
    (model / "refs").mkdir(parents=True)
    (model / "snapshots" / "abc").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots" / "abc" / "config.json").write_bytes((MODELS / "qwen3-4b.json").read_bytes())
    here = config(model={"base": "Qwen/Qwen3-4B"})
    for environ in ({"HF_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path / "hub")}):
        assert model_shape(here, environ=environ) == shape("qwen3-4b")
    for revision in ("abc", "main"):
        assert model_shape(config(model={"base": "Qwen/Qwen3-4B", "revision": revision}), environ=environ)
    with pytest.raises(ConfigError, match=r"hf download Qwen/Qwen3-4B config\.json --revision v2`"):
        model_shape(config(model={"base": "Qwen/Qwen3-4B", "revision": "v2"}), environ=environ)


def test_a_model_that_is_not_here_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hf download Qwen/Qwen3-4B config\.json"):
        model_shape(config(model={"base": "Qwen/Qwen3-4B"}), environ={"HF_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"model_type": "gpt2"}', "model type 'gpt2' is not one of gemma"),
        ('{"model_type": "qwen3"}', "KeyError 'hidden_size'"),
    ],
)
def test_a_file_that_is_no_known_model_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what):
        model_shape(config(), path)
