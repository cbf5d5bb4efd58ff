"""Cuts the groups of an update into micro-batches: tensors of a bounded number of tokens.

- Each sample that is trained lies in exactly one micro-batch; samples in a micro-batch have similar lengths.
- A prompt is held once per micro-batch, however many of its samples are in it.
"""

from collections.abc import Iterator, Sequence
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

    def to(self, device: torch.device) -> Self:
        """Copies the micro-batch to `device`; returns itself if it is there."""
        if self.tokens.device == device:
            return self
        return replace(self, packing=self.packing.to(device), **moved_tensors(self, device))


def micro_batches(update: Update, micro_tokens: int, packing: type[Packing]) -> Iterator[MicroBatch]:
    """Cuts an update into micro-batches of at most `micro_tokens` tokens, or of one sample each.

    Tokens are counted as the kind of attention pays for them (`Packing.size`).
    """
    chosen: list[PromptSamples] = []
    for piece in _pieces(update.groups, micro_tokens, packing):
        if chosen and packing.size(_lengths([*chosen, piece])) > micro_tokens:
            yield _collate(chosen, packing)
            chosen = []
        chosen.append(piece)
    if chosen:
        yield _collate(chosen, packing)


def _pieces(groups: Sequence[PromptSamples], micro_tokens: int, packing: type[Packing]) -> Iterator[PromptSamples]:
    """Yields the longest first. A prompt's samples stay together unless they have too many tokens for a micro-batch."""
    for group in sorted(groups, key=lambda group: max(len(row.tokens) for row in group.rows), reverse=True):
        rows = tuple(sorted(group.rows, key=lambda row: len(row.tokens), reverse=True))
        while rows:
            count = 1
            while count < len(rows):
                more = PromptSamples(group.prompt, rows[: count + 1])
                if packing.size(_lengths([more])) > micro_tokens:
                    break
                count += 1
            yield PromptSamples(group.prompt, rows[:count])
            rows = rows[count:]


def _lengths(pieces: Sequence[PromptSamples]) -> Lengths:
    return Lengths(
        prompts=np.array([len(piece.prompt) - 1 for piece in pieces]),
        samples=np.array([len(row.tokens) for piece in pieces for row in piece.rows]),
        prompt_of=np.repeat(np.arange(len(pieces)), [len(piece.rows) for piece in pieces]),
    )


def _collate(pieces: Sequence[PromptSamples], packing: type[Packing]) -> MicroBatch:
    rows = [row for piece in pieces for row in piece.rows]
    lengths = _lengths(pieces)
    shared = lengths.prompts
    sampled = np.concatenate([row.sampled for row in rows])
    inputs = [np.append(piece.prompt[-1:], row.tokens[:-1]) for piece in pieces for row in piece.rows]
    places = [first + np.arange(count) for first, count in zip(shared[lengths.prompt_of], lengths.samples, strict=True)]
    return MicroBatch(
        tokens=_integers([*(piece.prompt[:-1] for piece in pieces), *inputs]),
        positions=_integers([*map(np.arange, shared), *places]),
        packing=packing.of(lengths),
        outputs=_integers([shared.sum() + np.flatnonzero(sampled)]),
        targets=_integers([row.tokens[row.sampled] for row in rows]),
        behaviour=torch.from_numpy(np.concatenate([row.behaviour for row in rows])[sampled].astype(np.float32)),
        advantages=torch.from_numpy(
            np.repeat([row.advantage for row in rows], lengths.samples)[sampled].astype(np.float32)
        ),
    )


def _integers(parts: Sequence[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
