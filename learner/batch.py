"""Groups of an update → micro-batches of at most so many padded tokens, as tensors.

- Each sample that is trained lies in exactly one micro-batch; neighbours have similar lengths.
- What an environment wrote into a sample is read and never learned: its tokens are inputs, not targets, and count in
  nothing but the room that they take.
- A prompt is held once per micro-batch, however many of its samples are there.
- Groups come vetted (`echo_queue.records.validation`): nothing is checked here again.
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
class Row:
    """One sample to train: T tokens, their behaviour log-probabilities, which of them the model drew (all [T]), and the
    sample's advantage."""

    tokens: Tokens
    behaviour: Logprobs
    sampled: Mask
    advantage: float


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples of one prompt ([P] tokens)."""

    prompt: Tokens
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Update:
    """What one update trains. `tokens`, those that the model drew, normalises its loss."""

    parts: tuple[Rows, ...]
    tokens: int
    zero_variance_groups: int


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the L tokens of a micro-batch belong: N prompts of at most P shared tokens, R samples of at most T.

    Attention is the one place that needs rectangles; these indices cut them out of the packed tokens and put the
    results back. Padding points at token 0 and is masked.
    """

    shared: int
    """Tokens of prompts; the samples' K tokens follow them"""
    prompts: Tensor
    """[N, P] indices into L, padded on the right"""
    prompt_places: Tensor
    """[shared] flat indices into [N, P] of the tokens, in their packed order"""
    queries: Tensor
    """[R, T] indices into L"""
    keys: Tensor
    """[R, P + T] indices into L: a sample's prompt, then the sample itself"""
    mask: Tensor
    """[R, 1, T, P + T] true where a query may look"""
    sample_places: Tensor
    """[K] flat indices into [R, T]"""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """L tokens without padding: every prompt once, but for its last token, then the inputs of every sample.

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
    """Advantages of each group, and the tokens that normalise the loss.

    A group whose rewards are all equal has no advantage: "skip" leaves it out of the loss and of its token
    count, "keep" lets it count.
    """
    parts, flat = [], 0
    for group in groups:
        rewards = torch.tensor([sample.reward for sample in group.samples], dtype=torch.float32)
        if equal := bool((rewards == rewards[0]).all()):
            flat += 1
            if zero_variance == "skip":
                continue
        advantages = torch.zeros_like(rewards) if equal else group_advantages(rewards, advantage)
        rows = (
            Row(sample.tokens, sample.logprobs, _sampled(sample), float(a))
            for sample, a in zip(group.samples, advantages, strict=True)
        )
        parts.append(Rows(group.prompt, tuple(rows)))
    return Update(tuple(parts), sum(int(row.sampled.sum()) for part in parts for row in part.rows), flat)


def _sampled(sample: Sample) -> Mask:
    mask = np.ones(len(sample.tokens), np.bool_)
    for start, end in sample.observed:
        mask[start:end] = False
    return mask


def micro_batches(update: Update, micro_tokens: int) -> Iterator[MicroBatch]:
    """Cuts an update into micro-batches of at most `micro_tokens` padded tokens, or of one sample each."""
    held: list[Rows] = []
    for piece in _pieces(update.parts, micro_tokens):
        if held and _padded([*held, piece]) > micro_tokens:
            yield _collate(held)
            held = []
        held.append(piece)
    if held:
        yield _collate(held)


def _pieces(parts: Sequence[Rows], micro_tokens: int) -> Iterator[Rows]:
    """Longest first; a prompt's samples stay together unless they are too many tokens for one micro-batch."""
    for part in sorted(parts, key=lambda part: max(len(row.tokens) for row in part.rows), reverse=True):
        rows = sorted(part.rows, key=lambda row: len(row.tokens), reverse=True)
        while rows:
            room = micro_tokens - len(part.prompt) + 1
            count = max(1, room // len(rows[0].tokens))
            yield Rows(part.prompt, tuple(rows[:count]))
            rows = rows[count:]


def _padded(parts: Sequence[Rows]) -> int:
    prompt = max(len(part.prompt) for part in parts) - 1
    completion = max(len(row.tokens) for part in parts for row in part.rows)
    return len(parts) * prompt + sum(len(part.rows) for part in parts) * completion


def _collate(parts: Sequence[Rows]) -> MicroBatch:
    rows = [row for part in parts for row in part.rows]
    prompt_of = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
    shared = np.array([len(part.prompt) - 1 for part in parts])
    lengths = np.array([len(row.tokens) for row in rows])
    sampled = np.concatenate([row.sampled for row in rows])
    prompts, in_prompt = _rectangle(shared, first=0)
    samples, in_sample = _rectangle(lengths, first=int(shared.sum()))
    inputs = [np.append(part.prompt[-1:], row.tokens[:-1]) for part in parts for row in part.rows]
    visible = np.concatenate([in_prompt[prompt_of], in_sample], axis=1)
    places = np.arange(samples.shape[1])
    causal = np.arange(-prompts.shape[1], samples.shape[1]) <= places[:, None]
    return MicroBatch(
        tokens=_integers([*(part.prompt[:-1] for part in parts), *inputs]),
        positions=_integers([*map(np.arange, shared), *(shared[prompt_of, None] + places)[in_sample][None]]),
        packing=Packing(
            shared=int(shared.sum()),
            prompts=torch.from_numpy(prompts),
            prompt_places=torch.from_numpy(np.flatnonzero(in_prompt)),
            queries=torch.from_numpy(samples),
            keys=torch.from_numpy(np.concatenate([prompts[prompt_of], samples], axis=1)),
            mask=torch.from_numpy(visible[:, None, None, :] & causal),
            sample_places=torch.from_numpy(np.flatnonzero(in_sample)),
        ),
        outputs=_integers([shared.sum() + np.flatnonzero(sampled)]),
        targets=_integers([row.tokens[row.sampled] for row in rows]),
        behaviour=torch.from_numpy(np.concatenate([row.behaviour for row in rows])[sampled].astype(np.float32)),
        advantages=torch.from_numpy(np.repeat([row.advantage for row in rows], lengths)[sampled].astype(np.float32)),
    )


def _rectangle(lengths: Counts, first: int) -> tuple[Counts, Mask]:
    """Sequences that lie end to end from `first`, as rows: their indices (0 in padding), and which are real."""
    width = np.arange(lengths.max())
    starts = first + np.cumsum(lengths) - lengths
    real = width < lengths[:, None]
    return np.where(real, starts[:, None] + width, 0), real


def _integers(parts: Sequence[npt.NDArray[np.integer]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
