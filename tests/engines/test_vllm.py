"""Promises of the vLLM engine alone."""

import re
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from echo_queue.errors import ConfigError
from tests.engines import reference
from tests.engines.asking import ask, assert_same, finish, prompt, run, step_until
from tests.engines.conftest import Opener
from tests.engines.models import LONGEST, VOCABULARY, open_model, save_model
from tests.engines.serving import ANSWER_S
from tests.servers.ports import free_port
from workers.engines import SampleKey
from workers.engines.vllm.layout import views
from workers.engines.vllm.metrics_endpoint import NEIGHBOURS

ON_VLLM = pytest.mark.parametrize("opener", ["vllm"], indirect=True)


@ON_VLLM
def test_a_sample_moves_between_engines_and_is_what_it_would_have_been(
    opener: Opener, endless: Path, tmp_path: Path
) -> None:
    requests = ask("a", prompt(40, 2), 60, samples=3)
    transformers = Opener("transformers", tmp_path)
    whole = run(transformers(endless), requests)
    there = opener(endless)
    there.add(requests)
    step_until(there, 20, SampleKey("a", 0))
    partials = there.partials()
    there.abort(["a"])
    back = run(transformers(endless), [request._replace(partial_sample=partials[request.key]) for request in requests])
    for key, partial_sample in back.items():
        assert 20 <= len(partials[key].tokens) < 60
        assert_same(partial_sample, whole[key])


@ON_VLLM
def test_prompts_that_are_too_much_for_one_step_are_read_in_parts(opener: Opener, endless: Path) -> None:
    """vLLM reads 4,096 tokens a step on a CPU."""
    prompts = {f"p{number}": prompt(120, number) for number in range(48)}
    engine = opener(endless)
    engine.add([one for task, tokens in prompts.items() for one in ask(task, tokens, 6)])
    engine.step()
    begun = [key for key, partial_sample in engine.partials().items() if len(partial_sample.tokens)]
    assert 0 < len(begun) < len(prompts)
    model = open_model(endless)
    for key, partial_sample in finish(engine).items():
        assert len(partial_sample.tokens) == 6
        reference.assert_drawn_by({0: model}, prompts[key.task], partial_sample)


@ON_VLLM
def test_metrics_are_served_by_their_vllm_names_beside_a_neighbour(opener: Opener, endless: Path) -> None:
    with socket.create_server(("", free_port())) as neighbour:
        first = neighbour.getsockname()[1]
        engine = opener(endless, metrics_port=first)
        run(engine, ask("a", prompt(6, 1), 12, samples=5))
        figures = metrics(range(first + 1, first + NEIGHBOURS))
        opener.close()
    assert figures["vllm:generation_tokens_total"] == 60 + 1, "one token was its trial"
    assert figures["vllm:num_requests_running"] == 0
    assert "vllm:kv_cache_usage_perc" in figures
    with pytest.raises(AssertionError):
        metrics(range(first, first + NEIGHBOURS))


def metrics(ports: range) -> dict[str, float]:
    """Returns the metrics, without labels, of the first port that answers."""
    for port in ports:
        try:
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_S).read().decode()
        except OSError:
            continue
        lines = [line for line in text.splitlines() if line.startswith("vllm:")]
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    raise AssertionError(f"nothing answers at {ports}")


@ON_VLLM
def test_a_model_that_vllm_stores_otherwise_is_refused(opener: Opener, tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LONGEST, n_embd=64, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"rollout\.engine.*c_attn"):
        opener(tmp_path)


@ON_VLLM
def test_a_model_for_which_vllm_has_no_kernel_is_refused_when_it_is_opened(
    opener: Opener, endless: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.engine.*head_dim=16"):
        opener(save_model(tmp_path, 1, head_dim=16))
    assert run(opener(endless), ask("a", prompt(5, 1), 3))


@ON_VLLM
def test_vllm_opens_after_numba_was_used(opener: Opener, endless: Path) -> None:
    """Numba decodes weights in a worker, so it may have been used before vLLM opens: `Opener` uses it as well."""
    (partial_sample,) = run(opener(endless), ask("a", prompt(5, 1), 3)).values()
    assert partial_sample.finish == "length" and "llvmlite.binding.ffi" in sys.modules


class Fused(nn.Module):
    """A model as vLLM stores it: two of the checkpoint's matrices in one, and a padded vocabulary."""

    packed_modules_mapping = {"both": ["left", "right"]}  # noqa: RUF012 (vLLM's own form)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleDict({"both": nn.Linear(4, 5, bias=False)})
        self.embed = nn.Embedding(8, 4)
        self.both = self.layer["both"].weight.detach()

    def checkpoint(self) -> dict[str, torch.Tensor]:
        return {
            "layer.left.weight": self.both[:2].clone(),
            "layer.right.weight": self.both[2:].clone(),
            "embed.weight": self.embed.weight[:6].detach().clone(),
        }


def test_the_views_are_live_parts_of_the_parameters() -> None:
    model = Fused()
    left, checkpoint = model.both[:2].clone(), model.checkpoint()
    found = views(model, checkpoint | {"head.weight": checkpoint["embed.weight"]})
    assert found["embed.weight"] is found["head.weight"]
    found["layer.right.weight"].fill_(7)
    found["embed.weight"].fill_(8)
    assert torch.equal(model.both[:2], left) and bool((model.both[2:] == 7).all())
    assert bool((model.embed.weight[:6] == 8).all()) and not bool((model.embed.weight[6:] == 8).any())


def test_a_model_whose_weights_could_not_all_be_renewed_is_refused() -> None:
    model = Fused()
    right = model.both[2:]
    for name, odd in {
        "layer.right.weight": model.checkpoint() | {"layer.right.weight": right + 1},
        "layer.left.weight": model.checkpoint() | {"layer.left.weight": model.both[:2].double()},
        "norm.weight": model.checkpoint() | {"norm.weight": torch.ones(4)},
        "embed.weight": {"layer.left.weight": model.both[:2].clone(), "layer.right.weight": right.clone()},
    }.items():
        with pytest.raises(ConfigError, match=re.escape(name)):
            views(model, odd)
