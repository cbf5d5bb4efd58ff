"""A policy's settings of precision and memory change nothing but rounding."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from echo_queue.config import Config, Learner
from echo_queue.errors import ConfigError
from learner.batch.micro_batches import MicroBatch, micro_batches
from learner.batch.prepare import prepare
from learner.model import device
from learner.model.attention.rectangles import Rectangles
from learner.model.head import Head, token_scores
from learner.model.loading import load_policy
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.model.scorer import Scorer
from learner.model.sharding import local
from learner.ranks.team import Team
from tests.learner.model.families import FAMILIES, family_model
from tests.learner.synthetic import group, tiny_model


def one_batch() -> MicroBatch:
    (batch,) = micro_batches(prepare([group(0), group(1), group(2)], Learner()), 10_000, Rectangles)
    return batch


def gradients(policy: Policy) -> dict[str, Tensor]:
    policy.score(one_batch(), 0.8).logprobs.sum().backward()
    return {name: local(master.grad) for name, master in policy.masters.items() if master.grad is not None}


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["selective", "full"])
def test_activations_that_are_computed_again_give_the_same_gradients(
    kind: str, dtype: torch.dtype, family: str
) -> None:
    expected = gradients(Policy(for_scorer(family_model(family)), Learner(), dtype))
    settings = Learner(activation_checkpointing=kind)  # type: ignore[arg-type]
    found = gradients(Policy(for_scorer(family_model(family)), settings, dtype))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


def kept_for_the_gradient(**settings: Any) -> int:
    """Counts the elements that a forward pass keeps."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    policy = Policy(for_scorer(tiny_model()), Learner(**settings))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.score(one_batch(), 1.0)
    return sum(kept)


def test_layers_with_checkpoints_keep_less_for_the_gradient() -> None:
    everything = kept_for_the_gradient()
    assert kept_for_the_gradient(activation_checkpointing="selective") < everything
    assert kept_for_the_gradient(activation_checkpointing="full") < everything


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_scores_as_a_model_that_is_loaded_in_bfloat16(family: str, tmp_path: Path) -> None:
    """Workers load published weights so; buffers such as the rotary frequencies stay in float32 there."""
    family_model(family).save_pretrained(tmp_path)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    expected = Scorer(for_scorer(loaded))(one_batch(), 1.0)
    policy = Policy(for_scorer(family_model(family)), Learner(), torch.bfloat16)
    found = policy.score(one_batch(), 1.0)
    assert torch.equal(found.logprobs, expected.logprobs)
    assert torch.equal(found.entropy, expected.entropy)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "mixtral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_that_is_written_holds_what_was_published(tmp_path: Path, dtype: torch.dtype, family: str) -> None:
    policy = Policy(for_scorer(family_model(family)), Learner(), dtype)
    published = policy.snapshot()
    policy.save_pretrained(tmp_path, published)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == dtype
    assert {name for name, _ in loaded.named_parameters()} == published.keys()
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, published[name]), name


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """Files that are written have the rights that they usually have: all users of the machine may read them."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(
    ("rank", "files"),
    [
        (0, ["model.safetensors"]),
        pytest.param(3, ["adapter/adapter_model.safetensors", "model.safetensors"], marks=pytest.mark.slow),
    ],
    ids=["all weights", "adapters"],
)
def test_whoever_may_read_a_written_models_configuration_may_read_its_weights(
    rank: int, files: list[str], tmp_path: Path
) -> None:
    base, written = tmp_path / "base", tmp_path / "model"
    tiny_model().save_pretrained(base)
    values = {"run": {"name": "t", "dir": tmp_path}, "model": {"base": str(base), "lora": {"rank": rank}}}
    policy = load_policy(Config.model_validate(values), torch.device("cpu"), Team.alone())
    policy.save_pretrained(written, policy.snapshot())
    rights = {str(file.relative_to(written)): file.stat().st_mode for file in written.rglob("*") if file.is_file()}
    assert sorted(name for name in rights if name.endswith(".safetensors")) == files
    assert {stat.filemode(rights[name]) for name in ("config.json", *files)} == {"-rw-r--r--"}


def test_a_snapshot_does_not_change_with_the_next_step() -> None:
    policy = Policy(for_scorer(tiny_model()), Learner(lr=0.1))
    before = policy.snapshot()
    kept = {name: weight.clone() for name, weight in before.items()}
    gradients(policy)
    policy.clip_gradient()
    policy.step(0.1)
    assert all(torch.equal(before[name], weight) for name, weight in kept.items())
    assert any(not torch.equal(policy.snapshot()[name], weight) for name, weight in kept.items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_head_in_pieces_gives_the_scores_and_gradients_of_the_whole(rows: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(7, 16, generator=draw).to(dtype), torch.randn(50, 16, generator=draw).to(dtype)
    targets, upstream = torch.arange(7) * 5, torch.randn(7, generator=draw)
    results = []
    for at_once in (10_000, rows * 50):
        inputs = [tensor.clone().requires_grad_() for tensor in (hidden, weight)]
        scored = token_scores(inputs[0], Head(inputs[1]), targets, 0.7, at_once)
        (scored.logprobs * upstream).sum().backward()
        results.append((scored.logprobs, scored.entropy, *(tensor.grad for tensor in inputs)))
        assert not scored.entropy.requires_grad
    close = {"atol": 1e-5, "rtol": 1e-4} if dtype != torch.bfloat16 else {"atol": 0.05, "rtol": 0.05}
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, **close)


def test_a_gpu_that_is_asked_for_and_not_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.choose("auto") == device.choose("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r'is "cuda", but torch .* finds no GPU'):
        device.choose("cuda")
