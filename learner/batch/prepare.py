"""The samples that an update trains, with their advantages.

- An observation, written into a sample by its environment, is read and never learned: its tokens are inputs, not
  targets, and count only towards the size of the micro-batch.
- Groups are already validated (`echo_queue.records.validation`): nothing is checked here again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from echo_queue.records import Group, Logprobs, Sample, Tokens
from learner.losses.advantages import group_advantages
from learner.selection.signal import teaches

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
        if equal := not teaches(group):
            zero_variance_groups += 1
            if zero_variance == "skip":
                continue
        advantages = torch.zeros_like(rewards) if equal else group_advantages(rewards, advantage)
        rows = (
            SampleRow(sample.tokens, sample.logprobs, _sampled(sample), float(a))
            for sample, a in zip(group.samples, advantages, strict=True)
        )
        prepared.append(PromptSamples(group.prompt, tuple(rows)))
    return Update(tuple(prepared), trained_tokens(prepared), zero_variance_groups)


def trained_tokens(groups: Iterable[PromptSamples]) -> int:
    """Returns how many tokens of these samples the model drew."""
    return sum(int(row.sampled.sum()) for samples in groups for row in samples.rows)


def _sampled(sample: Sample) -> Mask:
    mask = np.ones(len(sample.tokens), np.bool_)
    for start, end in sample.observed:
        mask[start:end] = False
    return mask
