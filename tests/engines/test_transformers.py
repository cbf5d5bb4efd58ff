"""Promises of the transformers engine alone."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from echo_queue.errors import ConfigError
from echo_queue.records import Version
from tests.engines import reference
from tests.engines.asking import ask, prompt, run
from tests.engines.models import LONGEST, STOP, VOCABULARY, open_model
from tests.learner.model.families import FAMILIES, SIZES, family_model
from workers.engines import SampleKey
from workers.engines.transformers import engine as transformers_engine
from workers.engines.transformers.engine import TransformersEngine

BASE = Version(1, 0)


def open_engine(folder: Path, longest: int = LONGEST) -> TransformersEngine:
    return TransformersEngine(str(folder), BASE, "float32", longest)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_that_the_learner_trains_is_served(family: str, tmp_path: Path) -> None:
    """After a swap, and with windows that begin in the prompt and windows that have left it behind."""
    base, model = (family_model(family, seed, vocab_size=VOCABULARY, eos_token_id=STOP) for seed in (1, 2))
    base.save_pretrained(tmp_path)
    prompts = {f"p{length}": prompt(length, length) for length in (2, 17, 9)}
    requests = [one for task, tokens in prompts.items() for one in ask(task, tokens, 24, samples=3)]
    served = open_engine(tmp_path, longest=64)
    served.load(Version(1, 1), {name: parameter.detach() for name, parameter in model.named_parameters()})
    for key, partial_sample in run(served, requests).items():
        reference.assert_drawn_by({1: model}, prompts[key.task], partial_sample)


def test_a_processor_without_bfloat16_serves_the_same_weights_in_float32(
    folder: Path, newer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_engine, "cpu_has_bfloat16", lambda: False)
    engine = TransformersEngine(str(folder), BASE, "bfloat16", LONGEST)
    published = {name: one.detach().bfloat16() for name, one in open_model(newer).named_parameters()}
    engine.load(Version(1, 1), published)
    assert all(torch.equal(engine.weight(name), one) for name, one in published.items())
    rounded = open_model(newer)
    with torch.no_grad():
        for one in rounded.parameters():
            one.copy_(one.bfloat16())
    for key, partial_sample in run(engine, ask("a", prompt(9, 1), 24, samples=3)).items():
        assert key.task == "a"
        reference.assert_drawn_by({1: rounded}, prompt(9, 1), partial_sample)
    with pytest.raises(ConfigError, match="is float32, the engine holds bfloat16"):
        engine.load(Version(1, 2), {name: one.float() for name, one in published.items()})


def test_prompts_that_are_too_much_for_one_pass_are_read_in_portions(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_engine, "PREFILL_TOKENS", 40)
    engine, prompts = open_engine(endless), {f"p{length}": prompt(length, length) for length in (3, 90, 17, 4, 30, 1)}
    read: list[tuple[int, ...]] = []
    prefill = engine._prefill
    monkeypatch.setattr(engine, "_prefill", lambda some: read.append(tuple(map(len, some))) or prefill(some))
    partials = run(engine, [one for task, tokens in prompts.items() for one in ask(task, tokens, 6, samples=2)])
    assert read == [(0, 2, 3), (16,), (29,), (89,)], "the last token of each is read by the first step"
    for key, partial_sample in partials.items():
        reference.assert_drawn_by({0: open_model(endless)}, prompts[key.task], partial_sample)


def test_the_room_of_a_long_sample_is_given_back_after_it(endless: Path) -> None:
    engine = open_engine(endless)
    engine.add([*ask("long", prompt(200, 1), 100), *ask("short", prompt(3, 2), 300)])
    (long,) = (partial_sample for partial_sample in steps_until_one_ends(engine).values())
    assert len(long.tokens) == 100
    for _ in range(150):
        engine.step()
    window = engine._cache._window
    assert window.width == 2 + 250 and window.capacity <= window.width + 128


def steps_until_one_ends(engine: TransformersEngine) -> dict[SampleKey, object]:
    while not (ended := engine.step()):
        pass
    return dict(ended)


def test_a_model_that_is_too_short_or_has_layers_without_a_cache_of_keys_is_refused_at_once(tmp_path: Path) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 1}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "shared_expert_intermediate_size": 8}
    settings = AutoConfig.for_model("qwen3_next", **SIZES | experts | linear)
    AutoModelForCausalLM.from_config(settings).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no cache for linear_attention layers") as raised:
        open_engine(tmp_path, longest=600)
    assert "at most 256" in str(raised.value)


def test_a_model_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.base"):
        open_engine(tmp_path / "nothing")
