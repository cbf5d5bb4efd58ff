"""Old log-probabilities: those of an update's tokens by the very versions that drew them, as the learner computes them.

- An engine's log-probabilities μ differ from them by the engine's own numerics. So π / μ is the product of what the
  policy has learned since, π / π_old, and of what the engine computes otherwise, π_old / μ.
- Each version takes one forward pass over the samples with tokens that it drew, up to the last of these.
- π_old is μ itself for tokens of versions that `PastVersions` does not know.
"""

from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from echo_queue.records import Logprobs, Span
from learner.batch.prepare import PromptSamples, SampleRow, Update, trained_tokens
from learner.model.past_versions import PastVersions
from learner.update.passes import Passes

OF_THE_STEP = np.float32(np.nan)
"""Stands for the policy's own log-probability in the step that trains the token."""


@dataclass(frozen=True)
class OldFigures:
    """The figures of an update's old log-probabilities."""

    exact_fraction: float = 0.0
    """Share of the tokens whose old log-probabilities are exact."""
    kl_engine: float = 0.0
    """Mean of log μ − log π_old over the tokens that a pass scored; 0 without any."""


def with_old_logprobs(
    update: Update,
    past: PastVersions,
    passes_of: Callable[[Update], Passes],
    step: Callable[[], AbstractContextManager[object]],
    *,
    present: int,
    in_step: bool,
) -> tuple[Update, OldFigures]:
    """Returns the update's samples with their old log-probabilities. All ranks call it together and get the same.

    `present`: the version of the policy as it is. `in_step`: no pass scores the tokens that it drew, because the step
    that trains them does, before the policy moves. Each micro-batch of `passes_of` runs within a `step()`.
    """
    found = {row: row.behaviour.astype(np.float32) for row in update.rows}
    drawn = {int(version) for row in found for version in np.unique(row.versions[row.sampled])}
    known = {version for version in drawn if past.knows(version, present)}
    scored = known - {present} if in_step else known
    if in_step:
        for row, logprobs in found.items():
            logprobs[row.versions == present] = OF_THE_STEP
    if scored:
        with past.visit(present, min(scored)) as go_back_to:
            for version in sorted(scored, reverse=True):
                go_back_to(version)
                part, origins = drawn_by(update, version)
                for row, scores in passes_of(part).logprobs(step):
                    if row in origins:  # and is no filler
                        found[origins[row]][np.flatnonzero(row.sampled)] = scores
    groups = (
        replace(group, rows=tuple(replace(row, old_logprobs=found[row]) for row in group.rows))
        for group in update.groups
    )
    return replace(update, groups=tuple(groups)), _figures(found, known, scored)


def drawn_by(update: Update, version: int) -> tuple[Update, dict[SampleRow, SampleRow]]:
    """Returns the samples with tokens that `version` drew, which alone are targets; and of each the whole sample.

    Nothing follows the last of these tokens. A sample that is trained several times comes once.
    """
    groups, origins = [], dict[SampleRow, SampleRow]()
    for group in update.groups:
        cuts = {row: cut for row in group.rows if (cut := _cut(row, version)) is not None}
        if cuts:
            groups.append(PromptSamples(group.prompt, tuple(cuts.values())))
            origins |= {cut: row for row, cut in cuts.items()}
    return Update(tuple(groups), trained_tokens(groups), zero_variance_groups=0), origins


def _cut(row: SampleRow, version: int) -> SampleRow | None:
    own = row.sampled & (row.versions == version)
    if not own.any():
        return None
    end = int(np.flatnonzero(own)[-1]) + 1
    return SampleRow(row.tokens[:end], row.behaviour[:end], own[:end], row.advantage, spans=(Span(0, version),))


def _figures(found: dict[SampleRow, Logprobs], known: Set[int], scored: Set[int]) -> OldFigures:
    """Returns the figures. `known`: versions whose log-probabilities are exact; `scored`: those that took a pass."""
    if not found:
        return OldFigures(exact_fraction=1.0)
    versions, behaviour, old = (
        np.concatenate([values[row.sampled] for row, values in each])
        for each in (
            [(row, row.versions) for row in found],
            [(row, row.behaviour) for row in found],
            list(found.items()),
        )
    )
    passed = np.isin(versions, list(scored))
    gap = float((behaviour - old)[passed].mean(dtype=np.float64)) if passed.any() else 0.0
    return OldFigures(float(np.isin(versions, list(known)).mean()), gap)
