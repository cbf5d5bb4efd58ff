"""Hopeless runs are refused before anything starts; nothing is refused for what is not known."""

from pathlib import Path
from typing import Any

import pytest

from echo_queue.capacity.estimate import refusals
from tests.models import MODELS, config


def refused(directory: Path, name: str = "", **sections: dict[str, Any]) -> list[str]:
    """Returns where a run has problems. `name`: its model, a public one, whose config.json goes into `directory`."""
    if name:
        (directory / "config.json").write_bytes((MODELS / f"{name}.json").read_bytes())
        sections["model"] = sections.get("model", {}) | {"base": str(directory)}
    environ = {"CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(directory)}
    return [problem.where for problem in refusals(config(**sections), environ)]


@pytest.mark.parametrize("tokens_per_s", [50.0, 200.0])
def test_the_first_group_comes_before_the_stall_deadline(tmp_path: Path, tokens_per_s: float) -> None:
    """32,768 tokens take 655 s at 50 tokens a second, and 164 s at 200."""
    sections = {"model": {"max_new_tokens": 32_768}, "rollout": {"tokens_per_s": tokens_per_s}}
    expected = ["queue.stall_deadline_s"] if tokens_per_s == 50 else []
    assert refused(tmp_path, **sections) == expected
    assert not refused(tmp_path, **sections, queue={"stall_deadline_s": 1_311.0})


@pytest.mark.parametrize(
    ("name", "learner", "expected"),
    [
        ("qwen3-4b", {}, ["learner.device"]),
        ("qwen3-4b", {"device": "cpu"}, ["learner.device"]),
        ("qwen3-4b", {"allow_cpu": True}, []),
        ("qwen3-4b", {"device": "cuda"}, []),
        ("qwen3-0.6b", {"device": "cpu"}, []),
    ],
)
def test_a_large_model_needs_a_gpu_or_a_word(
    tmp_path: Path, name: str, learner: dict[str, Any], expected: list[str]
) -> None:
    assert refused(tmp_path, name, learner=learner) == expected


def test_adapters_need_layers_that_the_model_has(tmp_path: Path) -> None:
    for names, expected in ((["q_proj", "down_proj"], []), (["q_proj", "c_attn"], ["model.lora.target_modules"])):
        model = {"lora": {"rank": 8, "target_modules": names}}
        assert refused(tmp_path, "qwen3-0.6b", model=model) == expected


def test_a_model_that_is_not_here_is_not_judged(tmp_path: Path) -> None:
    assert not refused(tmp_path, model={"base": "Qwen/Qwen3-4B"})
