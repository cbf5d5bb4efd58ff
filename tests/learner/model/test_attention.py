"""Attention by sequence lengths, and the choice among the kinds."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from learner.batch.packing import LayerAttention, Lengths
from learner.model.attention import packing_for, varlen
from learner.model.attention.rectangles import Rectangles
from learner.model.attention.varlen import VariableLength
from tests.learner.gpu_stand_in import OnGpu
from tests.learner.model.families import family_model

HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def lengths(prompts: list[int], samples: list[list[int]]) -> Lengths:
    """Shared tokens of each prompt, and the tokens of each of its samples."""
    return Lengths(
        np.array(prompts),
        np.array([tokens for rows in samples for tokens in rows]),
        np.repeat(np.arange(len(samples)), [len(rows) for rows in samples]),
    )


CASES = [
    lengths([4], [[3, 1]]),
    lengths([0], [[5]]),
    lengths([0, 7, 2], [[1, 4], [2], [9, 9, 3]]),
    lengths([6, 0], [[2], [2, 8]]),
]


PLAIN = LayerAttention(WIDTH**-0.5)
WINDOWS = [LayerAttention(WIDTH**-0.5, window) for window in (1, 2, 3, 5, 100)]
SINKS = torch.tensor([-1.0, 0.0, 2.0, 5.0])
WRITTEN_OUT = [
    LayerAttention(0.7, cap=1.5),
    LayerAttention(None, sinks=SINKS),
    LayerAttention(0.7, window=3, cap=1.5, sinks=SINKS),
]


def by_definition(case: Lengths, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
    """Each token's attention alone: to its prompt and its sample up to itself, as far as the window reaches."""
    ends, own = np.cumsum(case.prompts), case.prompts.sum() + np.cumsum(case.samples)
    seen: list[list[int]] = []
    for end, count in zip(ends, case.prompts, strict=True):
        seen += [list(range(end - count, place + 1)) for place in range(end - count, end)]
    for prompt, end, count in zip(case.prompt_of, own, case.samples, strict=True):
        above = list(range(ends[prompt] - case.prompts[prompt], ends[prompt]))
        seen += [above + list(range(end - count, place + 1)) for place in range(end - count, end)]
    key, value = (states.repeat_interleave(HEADS // KEY_HEADS, dim=1) for states in (key, value))
    rows = []
    for place, before in enumerate(seen):
        keys = before[-layer.window :] if layer.window else before
        scores = torch.einsum("hd,khd->hk", query[place], key[keys]) * (layer.scale or WIDTH**-0.5)
        if layer.cap:
            scores = layer.cap * torch.tanh(scores / layer.cap)
        shares = scores.exp() / (scores.exp().sum(-1) + (0 if layer.sinks is None else layer.sinks.exp()))[:, None]
        rows.append(torch.einsum("hk,khd->hd", shares, value[keys]))
    return torch.stack(rows)


def documented(
    query: Tensor, key: Tensor, value: Tensor, query_bounds: Tensor, key_bounds: Tensor, *longest: int, **options: Any
) -> Tensor:
    """Computes what torch's documentation says of `varlen_attn` with window (W, 0): a query sees itself and the W keys
    before it, all of them with −1. Causal masks and windows of a pair of sequences are aligned at their last tokens.
    Flash attention itself needs a GPU (`test_gpu.py`)."""
    before, after = options["window_size"]
    assert after == 0
    assert longest == (int(query_bounds.diff().max()), int(key_bounds.diff().max()))
    assert query_bounds.dtype == key_bounds.dtype == torch.int32
    parts = []
    for (q0, q1), (k0, k1) in zip(pairs(query_bounds), pairs(key_bounds), strict=True):
        last = (k1 - k0) - (q1 - q0)
        visible = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(diagonal=last)
        if before >= 0:
            visible = visible.triu(diagonal=last - before)
        states = (part.transpose(0, 1) for part in (query[q0:q1], key[k0:k1], value[k0:k1]))
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                *states, attn_mask=visible, scale=options["scale"], enable_gqa=True
            ).transpose(0, 1)
        )
    return torch.cat(parts)


def pairs(bounds: Tensor) -> Iterator[tuple[int, int]]:
    return zip(bounds.tolist(), bounds.tolist()[1:], strict=False)


def states(case: Lengths) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    count = int(case.prompts.sum() + case.samples.sum())
    key, value = torch.randn(2, count, KEY_HEADS, WIDTH, generator=draw)
    return torch.randn(count, HEADS, WIDTH, generator=draw), key, value


@pytest.mark.parametrize("kind", [Rectangles, VariableLength])
@pytest.mark.parametrize("case", CASES)
def test_each_token_attends_to_its_prompt_and_its_sample_up_to_itself(
    case: Lengths, kind: type[Rectangles | VariableLength], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And, of these, to those in the layer's window, wherever it begins."""
    monkeypatch.setattr(varlen, "varlen_attn", documented)
    for layer in (PLAIN, *WINDOWS):
        found = kind.of(case).attend(*states(case), layer)
        torch.testing.assert_close(found, by_definition(case, *states(case), layer), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_capped_and_sinks_take_their_share(case: Lengths) -> None:
    for layer in WRITTEN_OUT:
        found = Rectangles.of(case).attend(*states(case), layer)
        torch.testing.assert_close(found, by_definition(case, *states(case), layer), atol=1e-6, rtol=1e-5)


class AttentionCalls(TorchFunctionMode):
    """Keeps whether each call of torch's attention was given keys for fewer heads than queries."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped: list[bool] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is scaled_dot_product_attention:
            self.grouped.append(args[1].shape[1] < args[0].shape[1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", CASES)
def test_rectangles_on_a_gpu_leave_torch_the_kernels_that_keep_no_scores(case: Lengths) -> None:
    """The result is the same: those kernels take no keys that several heads share."""
    packing, results = Rectangles.of(case), []
    for kind, grouped in ((Tensor, True), (OnGpu, False)):
        inputs = [part.requires_grad_() for part in states(case)]
        with AttentionCalls() as calls:
            output = packing.attend(*(part.as_subclass(kind) for part in inputs), PLAIN)
        assert calls.grouped == [grouped] * 2
        output.as_subclass(Tensor).square().sum().backward()
        results.append([output.as_subclass(Tensor), *(part.grad for part in inputs)])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layer", [*WINDOWS, *WRITTEN_OUT], ids=str)
def test_padding_leaves_no_gradient_that_is_no_number(layer: LayerAttention) -> None:
    for case in CASES:
        inputs = [part.requires_grad_() for part in states(case)]
        Rectangles.of(case).attend(inputs[0], inputs[1], inputs[2], layer).sum().backward()
        assert all(part.grad is not None and part.grad.isfinite().all() for part in inputs)


def test_only_rectangles_pay_for_padding() -> None:
    case = lengths([4, 1], [[10, 2], [3]])
    assert Rectangles.size(case) == 2 * 4 + 3 * 10
    assert VariableLength.size(case) == 5 + 15


def test_flash_attention_is_for_gpus_in_bfloat16_without_caps_and_sinks() -> None:
    gpu, cpu, model = torch.device("cuda"), torch.device("cpu"), family_model("gemma3")
    assert packing_for(gpu, torch.bfloat16, model) is VariableLength
    assert packing_for(gpu, torch.float32, model) is packing_for(cpu, torch.bfloat16, model) is Rectangles
    for family in ("gemma2", "gpt_oss"):
        assert packing_for(gpu, torch.bfloat16, family_model(family)) is Rectangles


@pytest.mark.parametrize(
    ("width", "kind"), [(16, VariableLength), (256, VariableLength), (12, Rectangles), (264, Rectangles)]
)
def test_flash_attention_is_for_heads_of_the_widths_that_it_computes(width: int, kind: type) -> None:
    gpu = torch.device("cuda")
    assert packing_for(gpu, torch.bfloat16, family_model("qwen3", head_dim=width)) is kind
    by_division = family_model("qwen2", hidden_size=HEADS * width)
    by_division.config.head_dim = None
    assert packing_for(gpu, torch.bfloat16, by_division) is kind
