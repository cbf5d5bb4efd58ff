"""Micro-batches of a bounded number of tokens: `cut` chooses the samples of each one, `collate` makes its tensors.

- Each sample that is trained lies in exactly one micro-batch; samples in a micro-batch have similar lengths.
- A prompt is held once per micro-batch, however many of its samples are in it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from learner.batch.packing import Lengths, Packing, moved_tensors
from learner.batch.prepare import PromptSamples, Update


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """L tokens without padding: every prompt once, without its last token, then the inputs of every sample.

    A sample's inputs are its prompt's last token and its completion without the last, so that the output at each of
    them predicts one of the completion's tokens; K of those were drawn by the model.
    """

    tokens: Tensor
    """[L] token ids"""
    positions: Tensor
    """[L] positions in the text"""
    packing: Packing
    outputs: Tensor
    """[K] indices into L of the inputs whose outputs predict the targets"""
    targets: Tensor
    """[K] token ids"""
    behaviour: Tensor
    """[K] float32 log-probabilities"""
    advantages: Tensor
    """[K] float32"""
    weights: Tensor
    """[K] float32: of each token's loss in the sum over all"""
    versions: Tensor
    """[K] the version that drew each target"""
    lengths: Tensor
    """[R] targets of each sample, which lie together and in order; their sum is K"""
    old_logprobs: Tensor | None = None
    """[K] float32 log-probabilities by the version that drew each target, if the loss needs them. NaN: those of the
    policy itself when the target is trained"""

    def to(self, device: torch.device) -> Self:
        """Copies the micro-batch to `device`; returns itself if it is there."""
        if self.tokens.device == device:
            return self
        return replace(self, packing=self.packing.to(device), **moved_tensors(self, device))


def micro_batches(update: Update, micro_tokens: int, packing: type[Packing]) -> Iterator[MicroBatch]:
    """Cuts an update that one process trains alone into micro-batches."""
    return (collate(pieces, packing) for pieces in cut(update.groups, micro_tokens, packing))


def cut(
    groups: Iterable[PromptSamples], micro_tokens: int, packing: type[Packing]
) -> Iterator[tuple[PromptSamples, ...]]:
    """Yields the pieces of each micro-batch of at most `micro_tokens` tokens, or of one sample; the longest come first.

    Tokens are counted as the kind of attention pays for them (`Packing.size`).
    """
    chosen: list[PromptSamples] = []
    for group in sorted(groups, key=lambda group: max(len(row.tokens) for row in group.rows), reverse=True):
        for piece in fitting_pieces(group, micro_tokens, packing):
            if chosen and packing.size(_lengths([*chosen, piece])) > micro_tokens:
                yield tuple(chosen)
                chosen = []
            chosen.append(piece)
    if chosen:
        yield tuple(chosen)


def fitting_pieces(group: PromptSamples, micro_tokens: int, packing: type[Packing]) -> Iterator[PromptSamples]:
    """Yields a group's samples, the longest first, together unless they have too many tokens for a micro-batch."""
    rows = tuple(sorted(group.rows, key=lambda row: len(row.tokens), reverse=True))
    lengths = _lengths([PromptSamples(group.prompt, rows)])
    begin = 0
    while begin < len(rows):

        def size(end: int, begin: int = begin) -> int:
            return packing.size(Lengths(lengths.prompts, lengths.samples[begin:end], lengths.prompt_of[begin:end]))

        end = len(rows)
        if size(end) > micro_tokens:
            end = begin + max(1, bisect_right(range(begin + 1, end), micro_tokens, key=size))
        yield PromptSamples(group.prompt, rows[begin:end])
        begin = end


def collate(pieces: Sequence[PromptSamples], packing: type[Packing]) -> MicroBatch:
    """Makes the tensors of one micro-batch, on the CPU. `pieces`: at least one, each of another group."""
    rows = [row for piece in pieces for row in piece.rows]
    lengths = _lengths(pieces)
    shared = lengths.prompts
    sampled = np.concatenate([row.sampled for row in rows])

    def of_samples(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(values, lengths.samples)[sampled].astype(np.float32))

    old = [row.old_logprobs for row in rows if row.old_logprobs is not None]
    inputs = [np.append(piece.prompt[-1:], row.tokens[:-1]) for piece in pieces for row in piece.rows]
    places = [first + np.arange(count) for first, count in zip(shared[lengths.prompt_of], lengths.samples, strict=True)]
    return MicroBatch(
        tokens=_integers([*(piece.prompt[:-1] for piece in pieces), *inputs]),
        positions=_integers([*map(np.arange, shared), *places]),
        packing=packing.of(lengths),
        outputs=_integers([shared.sum() + np.flatnonzero(sampled)]),
        targets=_integers([row.tokens[row.sampled] for row in rows]),
        behaviour=torch.from_numpy(np.concatenate([row.behaviour for row in rows])[sampled].astype(np.float32)),
        advantages=of_samples([row.advantage for row in rows]),
        weights=of_samples([row.weight for row in rows]),
        versions=_integers([row.versions[row.sampled] for row in rows]),
        lengths=torch.tensor([row.drawn for row in rows]),
        old_logprobs=torch.from_numpy(np.concatenate(old)[sampled].astype(np.float32)) if old else None,
    )


def _lengths(pieces: Sequence[PromptSamples]) -> Lengths:
    return Lengths(
        prompts=np.array([len(piece.prompt) - 1 for piece in pieces]),
        samples=np.array([len(row.tokens) for piece in pieces for row in piece.rows]),
        prompt_of=np.repeat(np.arange(len(pieces)), [len(piece.rows) for piece in pieces]),
    )


def _integers(parts: Sequence[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
