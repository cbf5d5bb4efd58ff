"""A base model comes out of its files as transformers loads it, and each rank holds no more than its share."""

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from echo_queue.config import Config, Learner
from echo_queue.errors import ConfigError
from learner.model.loading import load_policy, load_reference
from learner.model.sharding import local
from learner.ranks.team import Team
from learner.update import learn
from tests.learner.model.families import SCALED, family_model
from tests.learner.rank_processes import run_ranks
from tests.learner.synthetic import group, tiny_model

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
}  # fmt: skip
FAMILIES_LOADED = ("gemma3", "gemma2", "phi3", "smollm3", "olmo3", "gpt_oss", "qwen3_moe", "mixtral")
"""The last two have files that name tensors otherwise than transformers does."""
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen 3, tied": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)),
    "qwen 3, untied": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=False)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=SCALED, max_position_embeddings=512)),
} | {family: partial(family_model, family) for family in FAMILIES_LOADED}
LARGE = Qwen3Config(
    vocab_size=16_000, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
    head_dim=64, intermediate_size=1_536, tie_word_embeddings=True,
)  # fmt: skip
"""133 MB in float32."""


def config(base: Path, dtype: str = "float32") -> Config:
    return Config.model_validate(
        {"run": {"name": "t", "dir": base / "run"}, "model": {"base": str(base), "dtype": dtype}}
    )


@pytest.mark.parametrize("files", [1, 4])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_transformers_loads(name: str, stored: torch.dtype, files: int, tmp_path: Path) -> None:
    """Parameters, and buffers such as rotary frequencies, which no file holds; bit for bit."""
    made = MODELS[name]().to(stored)
    made.save_pretrained(tmp_path, max_shard_size="5GB" if files == 1 else "8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) >= files
    loaded = load_policy(config(tmp_path), CPU, Team.alone()).model
    same(loaded, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    reference = load_reference(config(tmp_path, "bfloat16"), CPU, Team.alone()).model
    same(reference, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16))
    assert not any(parameter.requires_grad for parameter in reference.parameters())


def same(found: PreTrainedModel, expected: PreTrainedModel) -> None:
    for kind in ("named_parameters", "named_buffers"):
        one, other = dict(getattr(found, kind)()), dict(getattr(expected, kind)())
        assert one.keys() == other.keys()
        for name, tensor in other.items():
            assert one[name].dtype == tensor.dtype
            assert torch.equal(one[name], tensor), name


def rows(team: Team, base: Path) -> list[dict[str, Tensor]]:
    """Returns this rank's rows of the policy and of the reference, and their buffers."""
    models = [load_policy(config(base, "bfloat16"), CPU, team).model]
    models.append(load_reference(config(base, "bfloat16"), CPU, team).model)
    return [
        {name: local(tensor.detach()).clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        for model in models
    ]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "qwen3_moe"])
def test_ranks_hold_the_rows_of_one_model(model: str, tmp_path: Path) -> None:
    """Three ranks share five experts, too, although unevenly."""
    MODELS[model]().save_pretrained(tmp_path)
    ranks = run_ranks(3, rows, tmp_path)
    for number, dtype in enumerate((torch.float32, torch.bfloat16)):
        whole = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        for name, tensor in whole.named_parameters():
            parts = [rank[number][name] for rank in ranks]
            assert max(map(len, parts)) == -(-len(tensor) // 3), name
            assert torch.equal(torch.cat(parts), tensor), name
        for name, buffer in whole.named_buffers():
            assert all(torch.equal(rank[number][name], buffer) for rank in ranks), name


def lacking(tensors: dict[str, Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def unknown(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = torch.zeros(1)


def reshaped(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = torch.zeros(31)


def untied(tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lacking, "its files lack model.layers.1.mlp.up_proj.weight"),
        (unknown, "its files hold an unknown model.layers.0.mlp.up_proj.weight_scale"),
        (reshaped, "its files hold in another shape model.norm.weight"),
        (untied, "its files hold different values of model.embed_tokens.weight, lm_head.weight"),
    ],
)
def test_files_that_do_not_match_the_architecture_are_refused(
    damage: Callable[[dict[str, Tensor]], None], what: str, tmp_path: Path
) -> None:
    tiny_model().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=re.escape(what)):
        load_policy(config(tmp_path), CPU, Team.alone())


def test_files_that_name_a_tied_tensor_twice_or_hold_what_is_computed_are_taken(tmp_path: Path) -> None:
    """As the hub's Qwen3-0.6B and Llama 2 do."""
    tiny_model().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(tensors, tmp_path / "model.safetensors")
    same(load_policy(config(tmp_path), CPU, Team.alone()).model, tiny_model())
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    same(load_policy(config(tmp_path), CPU, Team.alone()).model, tiny_model())


@pytest.mark.parametrize("lost", ["gate_proj", "down_proj"])
def test_experts_of_which_one_is_not_whole_are_refused(lost: str, tmp_path: Path) -> None:
    family_model("qwen3_moe").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.1.mlp.experts.3.{lost}.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"its files lack model\.layers\.1\.mlp\.experts\.(gate_up|down)_proj"):
        load_policy(config(tmp_path), CPU, Team.alone())


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_a_frozen_router_stays_as_it_is(family: str, tmp_path: Path) -> None:
    family_model(family).save_pretrained(tmp_path)
    settings = Learner(freeze_router=True, lr=0.1, weight_decay=0.1)
    policy = load_policy(config(tmp_path).model_copy(update={"learner": settings}), CPU, Team.alone())
    before = policy.snapshot()
    learn(policy, [group(0), group(1)], 1, settings, 1.0)
    kept = {name for name, weight in policy.snapshot().items() if torch.equal(weight, before[name])}
    parts = {"qwen3_moe": ["gate.weight"], "gpt_oss": ["router.weight", "router.bias"]}[family]
    assert kept == {f"model.layers.{layer}.mlp.{part}" for layer in (0, 1) for part in parts}


def test_a_router_that_is_not_there_cannot_be_frozen(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    settings = config(tmp_path).model_copy(update={"learner": Learner(freeze_router=True)})
    with pytest.raises(ConfigError, match=r"learner\.freeze_router: is set, but"):
        load_policy(settings, CPU, Team.alone())


def test_a_model_that_is_not_trained_is_refused_with_the_reason(tmp_path: Path) -> None:
    """As a hub model is whose config.json was not on this machine when the configuration was checked."""
    CohereConfig(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="of type cohere, is not one of those whose training is checked"):
        load_policy(config(tmp_path), CPU, Team.alone())


def test_a_folder_without_safetensors_files_is_refused(tmp_path: Path) -> None:
    tiny_model().config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cannot be loaded: it has no safetensors files"):
        load_policy(config(tmp_path), CPU, Team.alone())


@pytest.mark.slow
def test_a_hub_model_is_taken_from_the_cache_without_network(tmp_path: Path) -> None:
    """In a process of its own: the hub's client reads its environment once."""
    folder, commit = tmp_path / "hub/models--somebody--tiny", "a" * 40
    tiny_model().save_pretrained(folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    code = (
        "import torch; from echo_queue.config import Config; from learner.ranks.team import Team;"
        "from learner.model.loading import load_policy;"
        "config = Config.model_validate({'run': {'name': 't', 'dir': 't'}, 'model': {'base': 'somebody/tiny'}});"
        "print(load_policy(config, torch.device('cpu'), Team.alone()).snapshot()['model.norm.weight'].sum().item())"
    )
    environ = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 32.0


def memory(key: str) -> int:
    """VmRSS, the bytes that are resident now, or VmHWM, the most that ever were (proc(5))."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) * 1024


def peak(team: Team, warm_up: Path, base: Path) -> tuple[int, int]:
    """Returns how much loading adds to the peak of this process's memory, and what this rank holds then, in bytes."""
    load_policy(config(warm_up), CPU, team)
    gc.collect()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    policy = load_policy(config(base), CPU, team)
    return memory("VmHWM") - before, sum(local(master).untyped_storage().nbytes() for master in policy.masters.values())


@pytest.mark.slow
def test_no_rank_holds_more_than_its_share(tmp_path: Path) -> None:
    warm_up, base = tmp_path / "warm up", tmp_path / "base"
    tiny_model().save_pretrained(warm_up)
    model = AutoModelForCausalLM.from_config(LARGE, dtype=torch.float32)
    model.save_pretrained(base)
    whole = sum(parameter.nbytes for parameter in model.parameters())
    assert whole > 100e6
    for size in (2, 1):
        for most, held in run_ranks(size, peak, warm_up, base):
            assert held <= 1.01 * whole / size
            assert most <= 1.2 * whole / size
