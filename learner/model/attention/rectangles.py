"""Attention over padded rectangles: for CPUs, for what flash attention does not compute, and the reference for it.

Only attention needs rectangles; the indices cut them out of the packed tokens and put the results back. Padding points
at token 0 and is masked.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from learner.batch.packing import Counts, LayerAttention, Lengths, moved_tensors
from learner.model.attention.scores import attend

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rectangles:
    """Indices of the L packed tokens: N prompts of at most P shared tokens, R samples of at most T; K tokens of these.

    The samples' K tokens follow the prompts' shared tokens.
    """

    prompts: Tensor
    """[N, P] indices into L, padded on the right"""
    prompt_positions: Tensor
    """[L − K] flat indices into [N, P] of the tokens, in their packed order"""
    queries: Tensor
    """[R, T] indices into L"""
    keys: Tensor
    """[R, P + T] indices into L: a sample's prompt, then the sample itself"""
    mask: Tensor
    """[R, 1, T, P + T] true where a query may attend, if no window is in the way"""
    positions: Tensor
    """[R, P + T] each key's place in the sequence of prompt and sample. Padding has the place of a real token of its
    row, so that no window leaves a query without a key: the softmax of nothing is NaN."""
    sample_positions: Tensor
    """[K] flat indices into [R, T]"""

    @staticmethod
    def size(lengths: Lengths) -> int:
        """Returns the padded tokens: N · P + R · T."""
        padded = len(lengths.prompts) * lengths.prompts.max() + len(lengths.samples) * lengths.samples.max()
        return int(padded)

    @classmethod
    def of(cls, lengths: Lengths) -> Self:
        prompts, in_prompt = _rectangle(lengths.prompts, first=0)
        samples, in_sample = _rectangle(lengths.samples, first=int(lengths.prompts.sum()))
        visible = np.concatenate([in_prompt[lengths.prompt_of], in_sample], axis=1)
        causal = np.arange(-prompts.shape[1], samples.shape[1]) <= np.arange(samples.shape[1])[:, None]
        above, own = (counts[:, None] for counts in (lengths.prompts[lengths.prompt_of], lengths.samples))
        in_prompt_places = np.broadcast_to(np.arange(prompts.shape[1]), (len(own), prompts.shape[1]))
        in_sample_places = above + np.minimum(np.arange(samples.shape[1]), own - 1)
        return cls(
            prompts=torch.from_numpy(prompts),
            prompt_positions=torch.from_numpy(np.flatnonzero(in_prompt)),
            queries=torch.from_numpy(samples),
            keys=torch.from_numpy(np.concatenate([prompts[lengths.prompt_of], samples], axis=1)),
            mask=torch.from_numpy(visible[:, None, None, :] & causal),
            positions=torch.from_numpy(np.concatenate([in_prompt_places, in_sample_places], axis=1)),
            sample_positions=torch.from_numpy(np.flatnonzero(in_sample)),
        )

    def to(self, device: torch.device) -> Self:
        return replace(self, **moved_tensors(self, device))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: LayerAttention) -> Tensor:
        def attended(queries: Tensor, keys: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
            rectangles = _rows(query, queries), _rows(key, keys), _rows(value, keys)
            return _packed(attend(*rectangles, mask, layer), positions)

        prompts = attended(self.prompts, self.prompts, self.prompt_positions, self._window_of_prompts(layer.window))
        samples = attended(self.queries, self.keys, self.sample_positions, self._window_of_samples(layer.window))
        packed: Tensor = torch.cat([prompts, samples]).unflatten(1, query.shape[1:])
        return packed

    def _window_of_prompts(self, window: int | None) -> Tensor | None:
        """Returns the mask [P, P] of prompts, of which a window leaves less than what is causal; else None."""
        tokens = self.prompts.shape[1]
        if window is None or window >= tokens:
            return None
        near = torch.ones(tokens, tokens, dtype=torch.bool, device=self.prompts.device)
        return near.tril().triu(1 - window)

    def _window_of_samples(self, window: int | None) -> Tensor:
        """Returns the mask [R, 1, T, P + T] of samples. The sample's first window may begin inside its prompt."""
        if window is None or window >= self.keys.shape[1]:
            return self.mask
        queries = self.positions[:, self.prompts.shape[1] :]
        near = self.positions[:, None, :] > queries[:, :, None] - window
        return self.mask & near.unsqueeze(1)


def _rows(states: Tensor, indices: Tensor) -> Tensor:
    """Cuts rows out of packed states: states [L, H, D], indices [R, T] → [R, H, T, D]."""
    chosen = states.flatten(1).index_select(0, indices.flatten())
    return chosen.view(*indices.shape, *states.shape[1:]).transpose(1, 2)


def _packed(rows: Tensor, positions: Tensor) -> Tensor:
    """Puts rows [R, H, T, D] back in the packed order: [L, H · D]."""
    return rows.transpose(1, 2).flatten(0, 1).flatten(1).index_select(0, positions)


def _rectangle(lengths: Counts, first: int) -> tuple[Counts, Mask]:
    """Returns sequences that lie end to end from `first` as rows: their indices (0 in padding), and which are real."""
    width = np.arange(lengths.max())
    starts = first + np.cumsum(lengths) - lengths
    real = width < lengths[:, None]
    return np.where(real, starts[:, None] + width, 0), real
