"""The transformers engine against a plain forward pass of transformers itself."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from echo_queue.errors import ConfigError
from echo_queue.records import Version
from workers.engines import Completion, Prompt, Sampling
from workers.engines.transformers import TransformersEngine

VOCABULARY = 40
STOP = 3
BASE = Version(0, 0)


def make_model(folder: Path, seed: int, tied: bool = True, **settings: Any) -> Path:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=tied,
        max_position_embeddings=512,
        initializer_range=0.5,  # far from uniform, so that a wrong position or mask shows
        **{"eos_token_id": STOP} | settings,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def open_engine(folder: Path) -> TransformersEngine:
    return TransformersEngine(str(folder), BASE, "float32", max_tokens=512, stop_tokens=[])


def prompt(length: int, seed: int) -> Prompt:
    tokens = np.random.default_rng(seed).integers(4, VOCABULARY, length, dtype=np.int32)
    return Prompt(tokens, seed)


@torch.inference_mode()
def plain_logprobs(model: PreTrainedModel, prompt: Prompt, completion: Completion, temperature: float) -> torch.Tensor:
    """log_softmax(logits / temperature) of one unpadded sequence, at its completion [T, V]."""
    ids = torch.from_numpy(np.concatenate([prompt.tokens, completion.tokens])).long().unsqueeze(0)
    logits = model(ids).logits[0, len(prompt.tokens) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


def assert_logprobs_are_the_models(
    model: PreTrainedModel, prompts: list[Prompt], groups: list[list[Completion]], temperature: float = 1.0
) -> None:
    for one, group in zip(prompts, groups, strict=True):
        for completion in group:
            tokens = torch.from_numpy(completion.tokens).long().unsqueeze(1)
            expected = plain_logprobs(model, one, completion, temperature).gather(1, tokens).squeeze(1)
            np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_logprobs_equal_a_plain_forward_pass_for_prompts_of_different_lengths(tmp_path: Path, tied: bool) -> None:
    folder = make_model(tmp_path, 1, tied)
    prompts = [prompt(length, length) for length in (2, 17, 9)]
    groups = open_engine(folder).generate(prompts, 6, Sampling(24, temperature=0.7), threading.Event())
    assert_logprobs_are_the_models(AutoModelForCausalLM.from_pretrained(folder), prompts, groups, 0.7)
    assert {completion.finish for group in groups for completion in group} == {"stop", "length"}


def test_other_architectures_are_served_by_their_own_forward_pass(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=STOP, initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    prompts = [prompt(length, length) for length in (2, 17, 9)]
    groups = open_engine(tmp_path).generate(prompts, 6, Sampling(24), threading.Event())
    assert_logprobs_are_the_models(model.eval(), prompts, groups)


@pytest.mark.parametrize("tied", [True, False])
def test_logprobs_equal_a_plain_forward_pass_after_a_hot_load(tmp_path: Path, tied: bool) -> None:
    engine = open_engine(make_model(tmp_path / "old", 1, tied))
    new = AutoModelForCausalLM.from_pretrained(make_model(tmp_path / "new", 2, tied))
    engine.generate([prompt(5, 1)], 2, Sampling(8), threading.Event())
    engine.load(Version(0, 1), dict(new.named_parameters()))
    prompts = [prompt(4, 2), prompt(11, 3)]
    groups = engine.generate(prompts, 4, Sampling(16), threading.Event())
    assert_logprobs_are_the_models(new, prompts, groups)
    assert engine.version == Version(0, 1)


def test_a_cache_that_outgrows_its_first_room_stays_correct(tmp_path: Path) -> None:
    folder = make_model(tmp_path, 5, eos_token_id=None)
    engine = open_engine(folder)
    prompts = [prompt(6, 1), prompt(3, 2)]
    groups = engine.generate(prompts, 3, Sampling(200), threading.Event())
    assert_logprobs_are_the_models(AutoModelForCausalLM.from_pretrained(folder), prompts, groups)


def test_a_sample_ends_with_its_first_stop_token(tmp_path: Path) -> None:
    groups = open_engine(make_model(tmp_path, 1)).generate([prompt(3, 4)], 64, Sampling(30, 1.5), threading.Event())
    finished = [completion for completion in groups[0] if completion.finish == "stop"]
    assert len(finished) > 4
    assert all(completion.tokens[-1] == STOP and STOP not in completion.tokens[:-1] for completion in finished)
    running = [completion for completion in groups[0] if completion.finish == "length"]
    assert all(len(completion.tokens) == 30 and STOP not in completion.tokens for completion in running)


def test_a_group_does_not_depend_on_what_shares_its_call(tmp_path: Path) -> None:
    engine = open_engine(make_model(tmp_path, 1))
    one, other = prompt(4, 1), prompt(13, 2)
    alone = engine.generate([one], 8, Sampling(20), threading.Event())[0]
    shared = engine.generate([other, one], 8, Sampling(20), threading.Event())[1]
    for left, right in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(left.tokens, right.tokens)
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-4)


def test_another_seed_gives_another_group(tmp_path: Path) -> None:
    engine = open_engine(make_model(tmp_path, 1))
    one = prompt(4, 1)
    first, second = engine.generate([one, one._replace(seed=2)], 4, Sampling(20), threading.Event())
    assert any(left.tokens.tolist() != right.tokens.tolist() for left, right in zip(first, second, strict=True))


def test_tokens_are_drawn_as_often_as_the_model_says(tmp_path: Path) -> None:
    folder = make_model(tmp_path, 7)
    one = prompt(5, 1)
    draws = 20_000
    groups = open_engine(folder).generate([one], draws, Sampling(1, temperature=1.3), threading.Event())
    counts = np.bincount([completion.tokens[0] for completion in groups[0]], minlength=VOCABULARY)
    expected = plain_logprobs(AutoModelForCausalLM.from_pretrained(folder), one, groups[0][0], 1.3)[0].exp().numpy()
    assert np.abs(counts / draws - expected).max() < 5 * np.sqrt(0.25 / draws)


def test_top_p_draws_from_the_nucleus_and_reports_its_renormalised_probability(tmp_path: Path) -> None:
    folder = make_model(tmp_path, 7)
    one = prompt(5, 1)
    group = open_engine(folder).generate([one], 400, Sampling(1, top_p=0.6), threading.Event())[0]
    full = plain_logprobs(AutoModelForCausalLM.from_pretrained(folder), one, group[0], 1.0)[0].exp().numpy()
    order = np.argsort(-full)
    nucleus = order[: int(np.searchsorted(np.cumsum(full[order]), 0.6)) + 1]
    assert {int(completion.tokens[0]) for completion in group} <= set(nucleus.tolist())
    for completion in group[:20]:
        expected = full[completion.tokens[0]] / full[nucleus].sum()
        assert abs(np.exp(completion.logprobs[0]) - expected) < 1e-4


def test_a_stop_aborts_in_the_middle_and_keeps_what_there_is(tmp_path: Path) -> None:
    folder = make_model(tmp_path, 1, eos_token_id=None)
    engine = open_engine(folder)
    stop = threading.Event()

    def after_some_tokens() -> None:
        while engine.sampled < 40:
            time.sleep(0.001)
        stop.set()

    threading.Thread(target=after_some_tokens).start()
    prompts = [prompt(4, 1)]
    groups = engine.generate(prompts, 4, Sampling(500), stop)
    assert {completion.finish for completion in groups[0]} == {"abort"}
    assert all(10 <= len(completion.tokens) < 500 for completion in groups[0])
    assert_logprobs_are_the_models(AutoModelForCausalLM.from_pretrained(folder), prompts, groups)


def test_a_bad_load_names_every_tensor_and_leaves_the_old_weights_serving(tmp_path: Path) -> None:
    folder = make_model(tmp_path, 1, tied=False)
    engine = open_engine(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tensors = {name: tensor + 1 for name, tensor in model.named_parameters()}
    del tensors["model.norm.weight"]
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]
    tensors["unheard.of"] = torch.zeros(1)
    with pytest.raises(ConfigError) as raised:
        engine.load(Version(0, 1), tensors)
    assert {problem.where.split(", ")[1] for problem in raised.value.problems} == {
        "model.norm.weight",
        "lm_head.weight",
        "unheard.of",
    }
    prompts = [prompt(4, 1)]
    assert_logprobs_are_the_models(model, prompts, engine.generate(prompts, 2, Sampling(8), threading.Event()))
    assert engine.version == BASE


def test_tied_names_that_disagree_are_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path, 1, tied=True)
    tensors = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters(remove_duplicate=False))
    open_engine(folder).load(Version(0, 1), tensors)
    with pytest.raises(ConfigError, match="tied"):
        open_engine(folder).load(Version(0, 1), tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1})


def test_a_model_that_is_too_short_or_slides_its_window_is_refused_at_once(tmp_path: Path) -> None:
    folder = make_model(tmp_path, 1, use_sliding_window=True, sliding_window=64, max_window_layers=1)
    with pytest.raises(ConfigError, match="sliding_attention") as raised:
        TransformersEngine(str(folder), BASE, "float32", max_tokens=600, stop_tokens=[])
    assert "512" in str(raised.value)


def test_a_model_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.base"):
        open_engine(tmp_path / "nothing")
