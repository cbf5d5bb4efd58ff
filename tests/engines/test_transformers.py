"""Promises of the transformers engine alone."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from echo_queue.errors import ConfigError
from echo_queue.records import Version
from tests.engines import reference
from tests.engines.asking import ask, prompt, run
from tests.engines.models import LONGEST, STOP, VOCABULARY, open_model, save_model
from workers.engines import SampleKey, Sampling, transformers
from workers.engines.transformers import TransformersEngine

BASE = Version(1, 0)


def open_engine(folder: Path, longest: int = LONGEST) -> TransformersEngine:
    return TransformersEngine(str(folder), BASE, "float32", longest, Sampling())


def test_other_architectures_are_served_by_their_own_forward_pass(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LONGEST, eos_token_id=STOP, initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    prompts = {f"p{length}": prompt(length, length) for length in (2, 17, 9)}
    requests = [one for task, tokens in prompts.items() for one in ask(task, tokens, 24, samples=6)]
    for key, partial_sample in run(open_engine(tmp_path), requests).items():
        reference.assert_drawn_by({0: model.eval()}, prompts[key.task], partial_sample)


def test_prompts_that_are_too_much_for_one_pass_are_read_in_portions(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers, "PREFILL_TOKENS", 40)
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


def test_a_model_that_is_too_short_or_slides_its_window_is_refused_at_once(tmp_path: Path) -> None:
    folder = save_model(tmp_path, 1, use_sliding_window=True, sliding_window=64, max_window_layers=1)
    with pytest.raises(ConfigError, match="sliding_attention") as raised:
        open_engine(folder, longest=600)
    assert "512" in str(raised.value)


def test_a_model_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.base"):
        open_engine(tmp_path / "nothing")
