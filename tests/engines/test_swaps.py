"""New weights between two steps: samples that go on, caches that are not reused, and loads that are refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from echo_queue.errors import ConfigError
from echo_queue.records import Span, Version
from tests.engines import reference
from tests.engines.asking import ask, finish, prompt, run, step_until, versions
from tests.engines.conftest import BASE, IN_PROCESS, MAX_PROMPT, Opener, Saved
from tests.engines.models import LONGEST, open_model, parameters, save_model
from workers.engines import Engine, SampleKey

LONG = LONGEST - MAX_PROMPT
"""The tokens of samples that must not end before a swap, even where a server generates meanwhile."""
SWAPS = 80
MOST_GROWTH = 64 << 20
"""The allowed growth in bytes; the model that is swapped has 12 MB, and all its swaps 1 GB."""


@pytest.mark.slow
@pytest.mark.parametrize("opener", IN_PROCESS, indirect=True)
def test_many_swaps_take_no_memory(opener: Opener, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "initializer_range": 0.05}
    folders = [save_model(tmp_path / str(seed), seed, eos_token_id=None, **sizes) for seed in (1, 2)]
    engine, weights = opener(folders[0]), [parameters(folder) for folder in folders]
    before = 0
    for number in range(1, SWAPS + 1):
        stir(engine, number)
        engine.load(Version(1, number), weights[number % 2])
        if number == SWAPS // 4:
            before = resident()
    assert resident() - before < MOST_GROWTH
    tokens = prompt(9, 1)
    engine.abort([key.task for key in engine.partials()])
    partials = run(engine, ask("last", tokens, 8))
    reference.assert_drawn_by({SWAPS: open_model(folders[SWAPS % 2])}, tokens, partials[SampleKey("last", 0)])


def stir(engine: Engine, number: int) -> None:
    """Adds one more group and makes a few steps."""
    engine.add(ask(f"t{number}", prompt(5 + number % 40, number), 30, samples=4))
    for _ in range(3):
        engine.step()


def resident() -> int:
    """Returns the bytes of this process in memory."""
    words = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(words["VmRSS"].split()[0]) * 1024


def test_a_bad_load_names_every_tensor_and_leaves_the_old_weights_serving(opener: Opener, saved: Saved) -> None:
    folder = saved(1, tied=False, stops=False)
    engine, good = opener(folder), parameters(folder)
    bad = {name: tensor + 1 for name, tensor in good.items()} | {"unheard.of": torch.zeros(1)}
    del bad["model.norm.weight"]
    bad["lm_head.weight"] = bad["lm_head.weight"][:-1]
    bad["model.layers.0.mlp.up_proj.weight"] = bad["model.layers.0.mlp.up_proj.weight"].bfloat16()
    tokens = prompt(4, 1)
    engine.add(ask("a", tokens, LONG))
    step_until(engine, 4, SampleKey("a", 0))
    with pytest.raises(ConfigError) as raised:
        engine.load(Version(1, 1), bad)
    assert {problem.where.split(", ")[1] for problem in raised.value.problems} == {
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.0.mlp.up_proj.weight",
        "unheard.of",
    }
    assert engine.version == BASE
    assert all(torch.equal(engine.weight(name).cpu(), tensor) for name, tensor in good.items())
    for partial_sample in finish(engine).values():
        reference.assert_drawn_by({0: open_model(folder)}, tokens, partial_sample)


@pytest.mark.parametrize("tied", [False, True])
def test_after_a_swap_the_new_weights_serve(opener: Opener, saved: Saved, tied: bool) -> None:
    old, new = (saved(seed, tied=tied, stops=False) for seed in (1, 2))
    engine = opener(old)
    run(engine, ask("a", prompt(5, 1), 8))
    tensors = parameters(new)
    engine.load(Version(1, 1), tensors)
    assert engine.version == Version(1, 1)
    for name, tensor in tensors.items():
        assert torch.equal(engine.weight(name).cpu(), tensor), name
    prompts = {"b": prompt(4, 2), "c": prompt(11, 3)}
    partials = run(engine, [one for task, tokens in prompts.items() for one in ask(task, tokens, 16, samples=4)])
    for key, partial_sample in partials.items():
        assert set(versions(partial_sample)) == {1}
        reference.assert_drawn_by({1: open_model(new)}, prompts[key.task], partial_sample)


def test_a_sample_under_way_goes_on_with_the_new_weights_and_its_own_cache(
    opener: Opener, endless: Path, newer: Path
) -> None:
    engine, models = opener(endless), {0: open_model(endless), 1: open_model(newer), 2: open_model(endless)}
    prompts = {"a": prompt(6, 1), "b": prompt(21, 2)}
    engine.add([one for task, tokens in prompts.items() for one in ask(task, tokens, LONG, samples=2)])
    step_until(engine, 10, SampleKey("b", 1))
    engine.load(Version(1, 1), parameters(newer))
    ends = {key: [len(partial_sample.tokens)] for key, partial_sample in engine.partials().items()}
    step_until(engine, ends[SampleKey("a", 0)][0] + 20, SampleKey("a", 0))
    engine.load(Version(1, 2), parameters(endless))
    for key, partial_sample in engine.partials().items():
        ends[key].append(len(partial_sample.tokens))
    partials = finish(engine)
    for key, partial_sample in partials.items():
        first, second = ends[key]
        assert partial_sample.spans == (Span(0, 0), Span(first, 1), Span(second, 2))
        reference.assert_drawn_by(models, prompts[key.task], partial_sample, anew=opener.reads_anew)


def test_weights_that_made_no_token_are_named_by_no_span(opener: Opener, endless: Path, newer: Path) -> None:
    engine, tokens = opener(endless), prompt(6, 1)
    engine.add(ask("a", tokens, LONG))
    engine.load(Version(1, 1), parameters(newer))
    assert engine.partials()[SampleKey("a", 0)].spans == ()
    step_until(engine, 5, SampleKey("a", 0))
    engine.load(Version(1, 2), parameters(endless))
    begun = len(engine.partials()[SampleKey("a", 0)].tokens)
    engine.load(Version(1, 3), parameters(newer))
    assert engine.partials()[SampleKey("a", 0)].spans == (Span(0, 1),)
    (partial_sample,) = finish(engine).values()
    assert partial_sample.spans == (Span(0, 1), Span(begun, 3))
    reference.assert_drawn_by(
        {1: open_model(newer), 3: open_model(newer)}, tokens, partial_sample, anew=opener.reads_anew
    )


def test_what_comes_after_a_swap_reads_nothing_of_the_old_weights(opener: Opener, endless: Path, newer: Path) -> None:
    """The cache of a prompt is not read either, even if a sample under way still attends to it."""
    engine, tokens = opener(endless), prompt(100, 1)
    run(engine, ask("before", tokens, 4, samples=2))
    engine.add(ask("under way", tokens, LONG))
    step_until(engine, 3, SampleKey("under way", 0))
    engine.load(Version(1, 1), parameters(newer))
    engine.add(ask("after", tokens, 20, samples=3))
    partials = finish(engine)
    models = {0: open_model(endless), 1: open_model(newer)}
    for partial_sample in partials.values():
        reference.assert_drawn_by(models, tokens, partial_sample, anew=opener.reads_anew)
    assert len(partials[SampleKey("under way", 0)].spans) == 2


def test_a_sample_aborted_before_a_swap_and_continued_after_it_is_read_anew(
    opener: Opener, endless: Path, newer: Path
) -> None:
    engine, tokens = opener(endless), prompt(40, 1)
    (request,) = ask("a", tokens, LONG)
    engine.add([request])
    partial_sample = step_until(engine, 12, request.key)
    engine.abort(["a"])
    engine.load(Version(1, 1), parameters(newer))
    engine.add([request._replace(partial_sample=partial_sample)])
    (ended,) = finish(engine).values()
    begun = len(partial_sample.tokens)
    assert ended.spans == (Span(0, 0), Span(begun, 1))
    np.testing.assert_array_equal(ended.logprobs[:begun], partial_sample.logprobs)
    reference.assert_drawn_by({1: open_model(newer)}, tokens, ended, begun=begun)


def test_tied_names_are_given_once_or_equal(opener: Opener, endless: Path) -> None:
    engine, model = opener(endless), open_model(endless)
    tensors = {name: tensor.detach() for name, tensor in model.named_parameters(remove_duplicate=False)}
    assert "lm_head.weight" in tensors
    engine.load(Version(1, 1), tensors)
    with pytest.raises(ConfigError, match="tied"):
        engine.load(Version(1, 2), tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1})
    with pytest.raises(KeyError):
        engine.weight("unheard.of")
