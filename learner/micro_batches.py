"""Cuts the groups of an update into micro-batches: tensors of a bounded number of padded tokens.

- Each sample that is trained lies in exactly one micro-batch; samples in a micro-batch have similar lengths.
- An observation, written into a sample by its environment, is read and never learned: its tokens are inputs, not
  targets, and count only towards the size of the micro-batch.
- A prompt is held once per micro-batch, however many of its samples are in it.
- Groups are already validated (`echo_queue.records.validation`): nothing is checked here again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from echo_queue.records import Group, Logprobs, Sample, Tokens
from learner.losses.advantages import group_advantages

Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SampleRow:
    """A sample to train: T tokens, their behaviour log-probabilities, which of them the model drew (all [T]), and the
    sample's advantage."""

    tokens: Tokens
    behaviour: Logprobs
    sampled: Mask
    advantage: float


@dataclass(frozen=True, eq=False)
class PromptSamples:
    """Samples of one prompt ([P] tokens): a group, or the part of it that fits into one micro-batch."""

    prompt: Tokens
    rows: tuple[SampleRow, ...]


@dataclass(frozen=True)
class Update:
    """The samples that one update trains. `tokens` counts those that the model drew; it normalises the loss."""

    groups: tuple[PromptSamples, ...]
    tokens: int
    zero_variance_groups: int


@dataclass(frozen=True, eq=False)
class Packing:
    """Indices of the L packed tokens of a micro-batch: N prompts of at most P shared tokens, R samples of at most T.

    Only attention needs rectangles; these indices cut them out of the packed tokens and put the results back. Padding
    points at token 0 and is masked.
    """

    shared: int
    """Tokens of prompts; the samples' K tokens follow them"""
    prompts: Tensor
    """[N, P] indices into L, padded on the right"""
    prompt_positions: Tensor
    """[shared] flat indices into [N, P] of the tokens, in their packed order"""
    queries: Tensor
    """[R, T] indices into L"""
    keys: Tensor
    """[R, P + T] indices into L: a sample's prompt, then the sample itself"""
    mask: Tensor
    """[R, 1, T, P + T] true where a query may attend"""
    sample_positions: Tensor
    """[K] flat indices into [R, T]"""


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


def prepare(
    groups: Sequence[Group], advantage: Literal["std", "mean"], zero_variance: Literal["skip", "keep"]
) -> Update:
    """Computes the advantages of each group, and the number of tokens that normalises the loss.

    A group whose rewards are all equal has no advantage: "skip" leaves it out of the loss and of its token count,
    "keep" counts its tokens.
    """
    prepared, zero_variance_groups = [], 0
    for group in groups:
        rewards = torch.tensor([sample.reward for sample in group.samples], dtype=torch.float32)
        if equal := bool((rewards == rewards[0]).all()):
            zero_variance_groups += 1
            if zero_variance == "skip":
                continue
        advantages = torch.zeros_like(rewards) if equal else group_advantages(rewards, advantage)
        rows = (
            SampleRow(sample.tokens, sample.logprobs, _sampled(sample), float(a))
            for sample, a in zip(group.samples, advantages, strict=True)
        )
        prepared.append(PromptSamples(group.prompt, tuple(rows)))
    tokens = sum(int(row.sampled.sum()) for samples in prepared for row in samples.rows)
    return Update(tuple(prepared), tokens, zero_variance_groups)


def _sampled(sample: Sample) -> Mask:
    mask = np.ones(len(sample.tokens), np.bool_)
    for start, end in sample.observed:
        mask[start:end] = False
    return mask


def micro_batches(update: Update, micro_tokens: int) -> Iterator[MicroBatch]:
    """Cuts an update into micro-batches of at most `micro_tokens` padded tokens, or of one sample each."""
    chosen: list[PromptSamples] = []
    for piece in _pieces(update.groups, micro_tokens):
        if chosen and _padded_tokens([*chosen, piece]) > micro_tokens:
            yield _collate(chosen)
            chosen = []
        chosen.append(piece)
    if chosen:
        yield _collate(chosen)


def _pieces(groups: Sequence[PromptSamples], micro_tokens: int) -> Iterator[PromptSamples]:
    """Yields the longest first. A prompt's samples stay together unless they have too many tokens for a micro-batch."""
    for group in sorted(groups, key=lambda group: max(len(row.tokens) for row in group.rows), reverse=True):
        rows = sorted(group.rows, key=lambda row: len(row.tokens), reverse=True)
        while rows:
            room = micro_tokens - len(group.prompt) + 1
            count = max(1, room // len(rows[0].tokens))
            yield PromptSamples(group.prompt, tuple(rows[:count]))
            rows = rows[count:]


def _padded_tokens(pieces: Sequence[PromptSamples]) -> int:
    prompt = max(len(piece.prompt) for piece in pieces) - 1
    completion = max(len(row.tokens) for piece in pieces for row in piece.rows)
    return len(pieces) * prompt + sum(len(piece.rows) for piece in pieces) * completion


def _collate(pieces: Sequence[PromptSamples]) -> MicroBatch:
    rows = [row for piece in pieces for row in piece.rows]
    prompt_of = np.repeat(np.arange(len(pieces)), [len(piece.rows) for piece in pieces])
    shared = np.array([len(piece.prompt) - 1 for piece in pieces])
    lengths = np.array([len(row.tokens) for row in rows])
    sampled = np.concatenate([row.sampled for row in rows])
    prompts, in_prompt = _rectangle(shared, first=0)
    samples, in_sample = _rectangle(lengths, first=int(shared.sum()))
    inputs = [np.append(piece.prompt[-1:], row.tokens[:-1]) for piece in pieces for row in piece.rows]
    visible = np.concatenate([in_prompt[prompt_of], in_sample], axis=1)
    steps = np.arange(samples.shape[1])
    causal = np.arange(-prompts.shape[1], samples.shape[1]) <= steps[:, None]
    return MicroBatch(
        tokens=_integers([*(piece.prompt[:-1] for piece in pieces), *inputs]),
        positions=_integers([*map(np.arange, shared), *(shared[prompt_of, None] + steps)[in_sample][None]]),
        packing=Packing(
            shared=int(shared.sum()),
            prompts=torch.from_numpy(prompts),
            prompt_positions=torch.from_numpy(np.flatnonzero(in_prompt)),
            queries=torch.from_numpy(samples),
            keys=torch.from_numpy(np.concatenate([prompts[prompt_of], samples], axis=1)),
            mask=torch.from_numpy(visible[:, None, None, :] & causal),
            sample_positions=torch.from_numpy(np.flatnonzero(in_sample)),
        ),
        outputs=_integers([shared.sum() + np.flatnonzero(sampled)]),
        targets=_integers([row.tokens[row.sampled] for row in rows]),
        behaviour=torch.from_numpy(np.concatenate([row.behaviour for row in rows])[sampled].astype(np.float32)),
        advantages=torch.from_numpy(np.repeat([row.advantage for row in rows], lengths)[sampled].astype(np.float32)),
    )


def _rectangle(lengths: Counts, first: int) -> tuple[Counts, Mask]:
    """Returns sequences that lie end to end from `first` as rows: their indices (0 in padding), and which are real."""
    width = np.arange(lengths.max())
    starts = first + np.cumsum(lengths) - lengths
    real = width < lengths[:, None]
    return np.where(real, starts[:, None] + width, 0), real


def _integers(parts: Sequence[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
