"""A model is refused by its config.json alone if it would be trained wrongly, with the reason and what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from echo_queue.capacity.estimate import refusals
from echo_queue.models import model_refusals
from echo_queue.models.families import FAMILIES
from tests.models import MODELS, config, public

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"vocab_size": 500}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def reason(document: dict[str, Any], longest: int = 4_096) -> str:
    """Returns the one problem as it is printed; "" if the model is taken."""
    problems = [str(problem) for problem in model_refusals(SIZES | document, longest)]
    assert len(problems) < 2
    return "".join(problems)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_taken(family: str) -> None:
    assert not reason({"model_type": family})


@pytest.mark.parametrize(
    ("document", "what", "instead"),
    [
        ({"model_type": "mamba2"}, "recurrent state", "llama"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "recurrent state", "qwen3"),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}, "recurrent state", "qwen3"),
        ({"model_type": "qwen3_5_moe_text"}, "recurrent state", "qwen3_moe"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "multimodal", "gemma-3-1b-it"),
        ({"model_type": "qwen3_vl", "vision_config": {"depth": 2}}, "multimodal", "text model"),
        ({"model_type": "llama4_text"}, "chunks", "llama"),
        ({"model_type": "deepseek_v3"}, "latent attention", "qwen3_moe"),
        ({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}, "mxfp4", "copy .* in bfloat16"),
        ({"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}, "fp8", "copy .* in bfloat16"),
        ({"model_type": "cohere"}, "not one of those whose training is checked", "gemma2"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"]}, "layers of chunked_attention", "llama"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"]}, "no window for them", "use_sliding_window"),
        ({"model_type": "llama", "sliding_window": 128}, "transformers ignores", "remove sliding_window"),
        ({"model_type": "mistral", "layer_types": ["full_attention"]}, "every layer", "remove layer_types"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window of 0", "correct"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "comes after", "llama"),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_a_model_that_is_not_trained_is_refused_with_the_reason(
    document: dict[str, Any], what: str, instead: str
) -> None:
    found = reason(document)
    assert re.search(f"model.base: the model, of type {document['model_type']}, .*{what}.*\n.*→.*{instead}", found)


@pytest.mark.parametrize("rope", [LONGROPE, {"type": "dynamic", "factor": 2.0}])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rotations_that_depend_on_the_length_are_taken_up_to_the_length_where_they_change(
    rope: dict[str, Any], key: str
) -> None:
    """Such a rotation looks at the longest text of a batch, so that texts would change one another."""
    document = {"model_type": "phi3", "original_max_position_embeddings": 4_096, key: rope}
    assert not reason(document, 4_096)
    assert "lower model.max_prompt_tokens + model.max_new_tokens to 4096" in reason(document, 4_097)
    assert not reason({"model_type": "llama", key: {"rope_type": "llama3"}}, 1 << 20)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_experts_are_served_by_the_engine_that_can_renew_them(engine: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((MODELS / "qwen3-30b-a3b.json").read_bytes())
    run = config(model={"base": str(tmp_path)}, learner={"allow_cpu": True}, rollout={"engine": engine})
    problems = [(problem.where, problem.fix) for problem in refusals(run)]
    assert problems == ([] if engine == "transformers" else [("rollout.engine", 'set rollout.engine = "transformers"')])


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "o_proj")])
def test_adapters_of_a_mixture_are_those_of_its_attention(targets: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((MODELS / "qwen3-30b-a3b.json").read_bytes())
    model = {"base": str(tmp_path), "lora": {"rank": 8, "target_modules": targets}}
    problems = [problem.where for problem in refusals(config(model=model, learner={"allow_cpu": True}))]
    assert problems == (["model.lora.target_modules"] if targets == "all-linear" else [])


def test_a_mixture_is_deterministic_on_a_cpu_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((MODELS / "qwen3-30b-a3b.json").read_bytes())
    for device, expected in (("cpu", []), ("cuda", ["learner.deterministic"])):
        learner = {"allow_cpu": True, "deterministic": True, "device": device}
        found = refusals(config(model={"base": str(tmp_path)}, learner=learner))
        assert [problem.where for problem in found] == expected


def test_a_router_can_be_frozen_only_where_there_is_one(tmp_path: Path) -> None:
    for name, expected in (("qwen3-30b-a3b", []), ("qwen3-4b", ["learner.freeze_router"])):
        (tmp_path / "config.json").write_bytes((MODELS / f"{name}.json").read_bytes())
        run = config(model={"base": str(tmp_path)}, learner={"allow_cpu": True, "freeze_router": True})
        assert [problem.where for problem in refusals(run)] == expected


def test_a_config_json_that_cannot_be_read_is_a_problem_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(public("qwen3-4b"))[:-5])
    assert "is not JSON" in str([*refusals(config(model={"base": str(tmp_path)}))])
