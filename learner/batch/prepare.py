"""The samples that an update trains, with their advantages and their weights in the loss.

- An observation, written into a sample by its environment, is read and never learned: its tokens are inputs, not
  targets, and count only towards the size of the micro-batch.
- Groups are already validated (`echo_queue.records.validation`): nothing is checked here again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from echo_queue.config import Learner
from echo_queue.records import Group, Logprobs, Sample, Span, Tokens
from learner.losses.advantages import group_advantages, length_penalty

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SampleRow:
    """A sample to train: T tokens, their behaviour log-probabilities, which of them the model drew (all [T]), and the
    sample's advantage. `weight`: that of each of its tokens in the loss. `spans`: the versions that drew them.
    `old_logprobs` [T]: what `learner.update.old_logprobs` found, if the loss needs it."""

    tokens: Tokens
    behaviour: Logprobs
    sampled: Mask
    advantage: float
    weight: float = 1.0
    spans: tuple[Span, ...] = (Span(0, 0),)
    old_logprobs: Logprobs | None = None

    @property
    def drawn(self) -> int:
        """Number of tokens that the model drew."""
        return int(self.sampled.sum())

    @property
    def versions(self) -> Tokens:
        """The version that drew each token, [T]."""
        ends = [*(span.start for span in self.spans[1:]), len(self.tokens)]
        counts = [end - span.start for span, end in zip(self.spans, ends, strict=True)]
        return np.repeat(np.array([span.version for span in self.spans], np.int32), counts)


@dataclass(frozen=True, eq=False)
class PromptSamples:
    """Samples of one prompt ([P] tokens): a group, or the part of it that fits into one micro-batch."""

    prompt: Tokens
    rows: tuple[SampleRow, ...]


@dataclass(frozen=True)
class Update:
    """The samples that one update trains. `tokens` counts those that the model drew; the sum of all tokens' weighted
    losses is divided by `divisor`."""

    groups: tuple[PromptSamples, ...]
    tokens: int
    zero_variance_groups: int
    divisor: float = 1.0

    @property
    def rows(self) -> list[SampleRow]:
        return [row for samples in self.groups for row in samples.rows]


def prepare(groups: Sequence[Group], settings: Learner) -> Update:
    """Computes the advantages of each group, and the weights that normalise the loss.

    A group whose rewards are all equal has no advantage: `settings.zero_variance` leaves it out of the loss and of its
    token count ("skip"), or counts its tokens ("keep"). Samples that were cut off may be left out ("mask"), once the
    others have been compared with them.
    """
    prepared, zero_variance_groups = [], 0
    for group in groups:
        rewards = compared_rewards(group, settings)
        if equal := are_equal(rewards):
            zero_variance_groups += 1
            if settings.zero_variance == "skip":
                continue
        advantages = torch.zeros_like(rewards) if equal else group_advantages(rewards, settings.advantage)
        rows = tuple(
            SampleRow(sample.tokens, sample.logprobs, _sampled(sample), float(a), spans=sample.spans)
            for sample, a in zip(group.samples, advantages, strict=True)
            if sample.finish != "length" or settings.truncated == "keep"
        )
        if rows:
            prepared.append(PromptSamples(group.prompt, rows))
    return normalised(Update(tuple(prepared), trained_tokens(prepared), zero_variance_groups), settings)


def normalised(update: Update, settings: Learner) -> Update:
    """Gives the tokens of these samples the weights that `settings.normalise` asks for, and the update its divisor.

    "tokens": (1/N) Σ over all tokens (DAPO, arXiv 2503.14476, eq. 8); "samples": the mean over samples of their
    tokens' mean (GRPO, arXiv 2402.03300, eq. 3); "constant": (1/(R·L)) Σ (Dr. GRPO, arXiv 2503.20783, §3.2).
    """
    samples = len(update.rows)
    match settings.normalise:
        case "samples":
            return replace(update, groups=tuple(map(_weighed_by_length, update.groups)), divisor=samples)
        case "constant":
            return replace(update, divisor=samples * settings.normalise_tokens)
        case _:
            return replace(update, divisor=update.tokens)


def trained_tokens(groups: Iterable[PromptSamples]) -> int:
    """Returns how many tokens of these samples the model drew."""
    return sum(row.drawn for samples in groups for row in samples.rows)


def compared_rewards(group: Group, settings: Learner) -> Tensor:
    """Returns the rewards [G] that are compared: those of the environment, less what long samples lose."""
    rewards = torch.tensor([sample.reward for sample in group.samples], dtype=torch.float32)
    if not settings.long_until:
        return rewards
    lengths = torch.tensor([len(sample.tokens) for sample in group.samples])
    return rewards + length_penalty(lengths, settings.long_from, settings.long_until)


def are_equal(rewards: Tensor) -> bool:
    """Returns whether the rewards [G] of a group are all equal, so that it teaches nothing."""
    return bool((rewards == rewards[0]).all())


def _weighed_by_length(samples: PromptSamples) -> PromptSamples:
    return replace(samples, rows=tuple(replace(row, weight=1 / max(1, row.drawn)) for row in samples.rows))


def _sampled(sample: Sample) -> Mask:
    mask = np.ones(len(sample.tokens), np.bool_)
    for start, end in sample.observed:
        mask[start:end] = False
    return mask
