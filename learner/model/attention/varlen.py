"""Attention over sequences of any lengths by flash attention (`torch.nn.attention.varlen`): for GPUs, in bfloat16.

- No padding and no mask. Each sample's keys are its prompt's and its own, gathered one after the other; flash attention
  aligns the causal mask at the last key, so that a sample's first query sees the whole prompt and itself. Windows are
  aligned so, too: a gathered key lies as far before a query as in the sample's own sequence.
- The prompt's keys are copied once per sample, G · P · 2 · H_kv · D values for G samples: little beside the linear
  layers, which see each prompt once.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from learner.batch.packing import Counts, LayerAttention, Lengths, moved_tensors

GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""The option that allows fewer key heads than query heads. Torch before 2.12 has no option and always allows it."""


@dataclass(frozen=True, eq=False)
class VariableLength:
    """The bounds of the sequences among the L packed tokens, as int32, and the keys to gather for the samples."""

    shared: int
    """Tokens of prompts; the samples' tokens follow them"""
    longest_prompt: int
    longest_sample: int
    longest_keys: int
    prompt_bounds: Tensor
    """[N' + 1] where each prompt that has shared tokens begins; then where the last one ends"""
    query_bounds: Tensor
    """[R + 1] where each sample's queries begin, from the first sample's first token"""
    key_bounds: Tensor
    """[R + 1] where each sample's keys begin among the gathered ones"""
    keys: Tensor
    """[Σ (P + T)] indices into L of each sample's keys: its prompt's tokens, then its own"""

    @staticmethod
    def size(lengths: Lengths) -> int:
        """Returns L: nothing is padded."""
        return int(lengths.prompts.sum() + lengths.samples.sum())

    @classmethod
    def of(cls, lengths: Lengths) -> Self:
        shared, own = int(lengths.prompts.sum()), lengths.samples
        prompt_ends, sample_ends = np.cumsum(lengths.prompts), shared + np.cumsum(own)
        above = lengths.prompts[lengths.prompt_of]
        keys = [
            np.concatenate([np.arange(end - prompt, end), np.arange(own_end - tokens, own_end)])
            for end, prompt, own_end, tokens in zip(
                prompt_ends[lengths.prompt_of], above, sample_ends, own, strict=True
            )
        ]
        return cls(
            shared=shared,
            longest_prompt=int(lengths.prompts.max()),
            longest_sample=int(own.max()),
            longest_keys=int((above + own).max()),
            prompt_bounds=_bounds(lengths.prompts[lengths.prompts > 0]),
            query_bounds=_bounds(own),
            key_bounds=_bounds(above + own),
            keys=torch.from_numpy(np.concatenate(keys)),
        )

    def to(self, device: torch.device) -> Self:
        return replace(self, **moved_tensors(self, device))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        own = query[self.shared :], key.index_select(0, self.keys), value.index_select(0, self.keys)
        bounds = self.query_bounds, self.key_bounds, self.longest_sample, self.longest_keys
        samples = _causal(own, bounds, layer)
        if not self.shared:
            return samples
        above = query[: self.shared], key[: self.shared], value[: self.shared]
        bounds = self.prompt_bounds, self.prompt_bounds, self.longest_prompt, self.longest_prompt
        return torch.cat([_causal(above, bounds, layer), samples])


def _causal(
    states: tuple[Tensor, Tensor, Tensor], bounds: tuple[Tensor, Tensor, int, int], layer: LayerAttention
) -> Tensor:
    assert layer.cap is None and layer.sinks is None  # `learner.model.attention.packing_for`
    query, key, value = states
    before = -1 if layer.window is None else layer.window - 1
    output = varlen_attn(query, key, value, *bounds, scale=layer.scale, window_size=(before, 0), **GROUPED)
    assert isinstance(output, Tensor)
    return output


def _bounds(lengths: Counts) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
