"""An exported version is, to plain transformers, the model that the learner had."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from echo_queue.config import Config, Learner
from echo_queue.errors import ConfigError
from echo_queue.models.exported import Mark, mark_of, refuse_foreign
from learner.batch.micro_batches import micro_batches
from learner.batch.prepare import prepare
from learner.export.model_folder import copy_model, write_version
from learner.model.loading import load_policy
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.ranks.team import Team
from learner.update import learn
from tests.learner.learner_harness import tokenizer
from tests.learner.model.families import FAMILIES, family_model
from tests.learner.model.test_scorer import UNEVEN, plain
from tests.learner.synthetic import group, tiny_model
from tests.workers.small import save_model

TOKENS = torch.arange(3, 30).unsqueeze(0)


def config(base: Path, **model: object) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "test", "dir": base.parent / "run"},
            "model": {"base": str(base), **model},
            "learner": {"lr": 1e-2},
        }
    )


def stored(tensors: Mapping[str, Tensor], folder: Path) -> Path:
    """Writes weights as a fetched version's file."""
    file = folder / "1.1.safetensors"
    save_file(dict(tensors), file)
    return file


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_version_gives_the_log_probabilities_that_the_learner_had(family: str, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "exported"
    family_model(family, seed=0).save_pretrained(base)
    tokenizer().save_pretrained(base)
    policy = Policy(for_scorer(family_model(family, seed=1)), Learner())
    (batch,) = micro_batches(prepare(UNEVEN, Learner(zero_variance="keep")), 10_000, policy.packing)
    write_version(config(base), base, stored(policy.snapshot(), tmp_path), folder, adapter=False)
    loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    expected = torch.cat(list(plain(loaded, UNEVEN, 1.0).values())).sort().values
    found = policy.score(batch, 1.0).logprobs.sort().values
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    before = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    others = torch.cat(list(plain(before, UNEVEN, 1.0).values())).sort().values
    assert not torch.allclose(found, others, atol=1e-2), "it is another model than the base model"


def test_an_exported_folder_has_what_a_model_is_used_with(tmp_path: Path) -> None:
    """Tokenizer, chat template and generation settings are the base model's, weights in the type that was published."""
    base, folder = save_model(tmp_path / "base", seed=0, chat=True), tmp_path / "exported"
    GenerationConfig(temperature=0.6, do_sample=True, eos_token_id=[0, 7]).save_pretrained(base)
    policy = load_policy(config(base, dtype="bfloat16"), torch.device("cpu"), Team.alone())
    write_version(config(base, dtype="bfloat16"), base, stored(policy.snapshot(), tmp_path), folder, adapter=False)
    messages = [{"role": "user", "content": "7 + 5 = 12"}]
    ours, theirs = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(base)
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages)
    generation = GenerationConfig.from_pretrained(folder)
    assert (generation.temperature, generation.eos_token_id) == (0.6, [0, 7])
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


@pytest.mark.slow
def test_adapters_are_merged_as_the_learner_computes_and_are_written_as_peft_has_them(tmp_path: Path) -> None:
    from peft import PeftModel

    base, merged, adapter = tmp_path / "base", tmp_path / "merged", tmp_path / "adapter"
    tiny_model().save_pretrained(base)
    tokenizer().save_pretrained(base)
    settings = config(base, lora={"rank": 4})
    policy = load_policy(settings, torch.device("cpu"), Team.alone())
    groups = [group(number, 5, (4, 9, 7), (1, 0, number % 2)) for number in range(3)]
    for number in (1, 2):
        learn(policy, groups, number, settings.learner, 1.0)
    file = stored(policy.snapshot(), tmp_path)
    write_version(settings, base, file, merged, adapter=False)
    write_version(settings, base, file, adapter, adapter=True)
    (batch,) = micro_batches(prepare(UNEVEN, Learner(zero_variance="keep")), 10_000, policy.packing)
    found = policy.score(batch, 1.0).logprobs.sort().values
    for folder in (adapter, merged / "adapter"):  # with PEFT's own forward pass, in float32
        plainly: PreTrainedModel = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
        with_peft: Any = PeftModel.from_pretrained(plainly, folder)
        for model in (with_peft, AutoModelForCausalLM.from_pretrained(merged, attn_implementation="eager")):
            expected = torch.cat(list(plain(model, UNEVEN, 1.0).values())).sort().values
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)

    copied = tmp_path / "copied"
    copy_model(merged, copied)
    assert (copied / "adapter/adapter_model.safetensors").read_bytes() == (
        adapter / "adapter_model.safetensors"
    ).read_bytes()
    assert torch.equal(
        AutoModelForCausalLM.from_pretrained(copied)(TOKENS).logits,
        AutoModelForCausalLM.from_pretrained(merged)(TOKENS).logits,
    )

    other = tmp_path / "other"
    tiny_model(seed=1).save_pretrained(other)
    with pytest.raises(ConfigError, match="is another one than that of this version's adapters: model"):
        write_version(config(other, lora={"rank": 4}), other, file, tmp_path / "x", adapter=False)
    with pytest.raises(ConfigError, match=r"model\.lora\.rank: is 0, but this version is one of adapters"):
        write_version(config(base), base, file, tmp_path / "x", adapter=False)


def test_weights_of_another_model_or_without_adapters_are_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    tiny_model().save_pretrained(base)
    tokenizer().save_pretrained(base)
    other = {name: one.detach().clone() for name, one in tiny_model(num_hidden_layers=1).named_parameters()}
    with pytest.raises(ConfigError, match=r"model\.base: is another one than that of this version: model\.layers\.1"):
        write_version(config(base), base, stored(other, tmp_path), tmp_path / "x", adapter=False)
    with pytest.raises(ConfigError, match="--adapter: has no adapters"):
        write_version(config(base), base, stored(other, tmp_path), tmp_path / "x", adapter=True)


def test_only_a_folder_of_ours_or_an_empty_one_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    refuse_foreign(folder)
    folder.mkdir()
    refuse_foreign(folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="there: is no exported model, and is left as it is"):
        refuse_foreign(folder)
    with pytest.raises(ConfigError, match=r"notes\.txt: is a file"):
        refuse_foreign(folder / "notes.txt")
    Mark("test", "1.7", adapter=False).write(folder)
    refuse_foreign(folder)
    assert mark_of(folder) == Mark("test", "1.7", adapter=False)
