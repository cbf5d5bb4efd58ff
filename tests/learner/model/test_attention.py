"""Attention by sequence lengths, and the choice among the kinds."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learner.batch.packing import Lengths
from learner.model.attention import packing_for, varlen
from learner.model.attention.rectangles import Rectangles
from learner.model.attention.varlen import VariableLength

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


def by_definition(case: Lengths, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each token's attention alone: to its prompt and its sample up to itself."""
    ends, own = np.cumsum(case.prompts), case.prompts.sum() + np.cumsum(case.samples)
    seen: list[list[int]] = []
    for end, count in zip(ends, case.prompts, strict=True):
        seen += [list(range(end - count, place + 1)) for place in range(end - count, end)]
    for prompt, end, count in zip(case.prompt_of, own, case.samples, strict=True):
        above = list(range(ends[prompt] - case.prompts[prompt], ends[prompt]))
        seen += [above + list(range(end - count, place + 1)) for place in range(end - count, end)]
    key, value = (states.repeat_interleave(HEADS // KEY_HEADS, dim=1) for states in (key, value))
    rows = []
    for place, keys in enumerate(seen):
        scores = torch.einsum("hd,khd->hk", query[place], key[keys]) / WIDTH**0.5
        rows.append(torch.einsum("hk,khd->hd", scores.softmax(-1), value[keys]))
    return torch.stack(rows)


def documented(
    query: Tensor, key: Tensor, value: Tensor, query_bounds: Tensor, key_bounds: Tensor, *longest: int, **options: Any
) -> Tensor:
    """Computes what torch's documentation says of `varlen_attn` with window (−1, 0): the causal mask of each pair of
    sequences is aligned at their last tokens. Flash attention itself needs a GPU (`test_gpu.py`)."""
    assert options["window_size"] == (-1, 0)
    assert longest == (int(query_bounds.diff().max()), int(key_bounds.diff().max()))
    assert query_bounds.dtype == key_bounds.dtype == torch.int32
    parts = []
    for (q0, q1), (k0, k1) in zip(pairs(query_bounds), pairs(key_bounds), strict=True):
        visible = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(diagonal=(k1 - k0) - (q1 - q0))
        states = (part.transpose(0, 1) for part in (query[q0:q1], key[k0:k1], value[k0:k1]))
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                *states, attn_mask=visible, scale=options["scale"], enable_gqa=True
            ).transpose(0, 1)
        )
    return torch.cat(parts)


def pairs(bounds: Tensor) -> Iterator[tuple[int, int]]:
    return zip(bounds.tolist(), bounds.tolist()[1:], strict=False)


@pytest.mark.parametrize("kind", [Rectangles, VariableLength])
@pytest.mark.parametrize("case", CASES)
def test_each_token_attends_to_its_prompt_and_its_sample_up_to_itself(
    case: Lengths, kind: type[Rectangles | VariableLength], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", documented)
    draw = torch.Generator().manual_seed(0)
    count = int(case.prompts.sum() + case.samples.sum())
    query = torch.randn(count, HEADS, WIDTH, generator=draw)
    key, value = torch.randn(2, count, KEY_HEADS, WIDTH, generator=draw)
    found = kind.of(case).attend(query, key, value, WIDTH**-0.5)
    torch.testing.assert_close(found, by_definition(case, query, key, value), atol=1e-6, rtol=1e-5)


def test_only_rectangles_pay_for_padding() -> None:
    case = lengths([4, 1], [[10, 2], [3]])
    assert Rectangles.size(case) == 2 * 4 + 3 * 10
    assert VariableLength.size(case) == 5 + 15


def test_flash_attention_is_for_gpus_in_bfloat16() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert packing_for(gpu, torch.bfloat16) is VariableLength
    assert packing_for(gpu, torch.float32) is packing_for(cpu, torch.bfloat16) is Rectangles
