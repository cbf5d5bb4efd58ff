"""May a learner train on what a worker sent? The one place that decides.

- Everything the learner relies on is checked: size, number of samples, lengths, token ids, log-probabilities, what was
  observed, the versions that the sender can have had, rewards and their range, how each sample ended.
- What fails is a `BadGroup`: a cause, one word that the queue counts, and a reason for a person. `GroupValidator` knows
  who sent it, and ends the run with that name when one worker sends nothing else.
- Text that no model wrote and a false reward within its range pass: see docs/reliability.md, what is not promised.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NoReturn, get_args

import numpy as np

from echo_queue.config import Config
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.records import Group, Observed, Sample, Tokens, Version
from echo_queue.records.group_codec import CodecError

Cause = Literal["bytes", "entry", "shape", "tokens", "logprobs", "observed", "versions", "reward", "finish"]
"""`bytes`: no group at all; `entry`: another one than its entry in the stream says."""
CAUSES: tuple[Cause, ...] = get_args(Cause)

LOGPROB_MAX = 1e-3
"""A probability is at most 1; rounding in an engine may put its logarithm a little above 0."""
LOGPROB_MIN = -1e3
"""Float32 draws nothing below −104; a log-probability beyond this was never drawn with."""
PATIENCE = 8
"""Bad groups in a row before it is an error, in batches smaller than that."""


class BadGroup(CodecError):
    """A group that may not be trained, and why."""

    def __init__(self, cause: Cause, rule: str) -> None:
        super().__init__(Problem("replay record", rule, "look at the worker that made it"))
        self.cause = cause


@dataclass(frozen=True)
class GroupLimits:
    """What a run's configuration allows in a group."""

    samples: int
    vocabulary: int
    prompt_tokens: int
    new_tokens: int
    """Sampled and observed ones of a sample."""
    reward_min: float
    reward_max: float
    turns: int = 1
    """Of the model in a sample; between them lie observations."""

    @classmethod
    def of(cls, config: Config, vocabulary: int) -> "GroupLimits":
        return cls(
            samples=config.rollout.group_size,
            vocabulary=vocabulary,
            prompt_tokens=config.model.max_prompt_tokens,
            new_tokens=config.model.max_new_tokens,
            reward_min=config.environment.reward_min,
            reward_max=config.environment.reward_max,
            turns=config.environment.most_turns,
        )


def check(group: Group, limits: GroupLimits) -> None:
    """Raises `BadGroup` unless `group` is one that a worker of this configuration can have made."""
    if len(group.samples) != limits.samples:
        _refuse("shape", f"it has {len(group.samples)} samples; rollout.group_size is {limits.samples}")
    if not 0 < len(group.prompt) <= limits.prompt_tokens:
        what = f"its prompt has {len(group.prompt)} tokens; model.max_prompt_tokens is {limits.prompt_tokens}"
        _refuse("shape", what)
    if not _in_range(group.prompt, limits.vocabulary):
        _refuse("tokens", f"its prompt has token ids outside the model's vocabulary of {limits.vocabulary}")
    for number, sample in enumerate(group.samples):
        _check_sample(f"sample {number}", sample, limits)


def check_versions(group: Group, newest: Version) -> None:
    """Raises `BadGroup` if no worker can have had the weights it names. `newest`: the newest ones handed out.

    How old they may be is the queue's own check, on draining and again in the learner.
    """
    if group.lineage > newest.lineage:
        _refuse("versions", f"it names lineage {group.lineage}; this learner is {newest.lineage}")
    if group.newest > newest.number:
        _refuse("versions", f"it names version {group.newest}; the newest handed out is {newest.number}")
    for number, sample in enumerate(group.samples):
        versions = [span.version for span in sample.spans]
        if versions != sorted(versions):
            _refuse("versions", f"sample {number} goes back to older weights: {versions}")


class GroupValidator:
    """What the learner of `newest.lineage` asks of each group, and of each worker.

    `newest`: the newest weights handed out so far; the learner moves it. `patience`: so many bad groups in a row, of
    one worker or of all together, are an error.
    """

    def __init__(self, limits: GroupLimits, newest: Version, patience: int = PATIENCE) -> None:
        self.newest = newest
        self._limits = limits
        self._patience = patience
        self._streaks: dict[str, int] = {}
        self._all = 0
        self._last = ("", "")

    def check(self, group: Group) -> None:
        """Raises `BadGroup`."""
        check(group, self._limits)
        check_versions(group, self.newest)

    def good(self, worker: str) -> None:
        self._streaks.pop(worker, None)
        self._all = 0

    def bad(self, worker: str, reason: str) -> None:
        self._streaks[worker] = self._streaks.get(worker, 0) + 1
        self._all += 1
        self._last = worker, reason

    def complain(self) -> None:
        """Raises `EchoQueueError` with the worker's name when it is time."""
        worst = max(self._streaks, key=self._streaks.__getitem__, default="")
        streak = self._streaks.get(worst, 0)
        if streak < self._patience:
            worst, streak = self._last[0], self._all
        if streak < self._patience:
            return
        what = f"{streak} groups in a row could not be trained; the last, of worker {self._last[0]}: {self._last[1]}"
        fix = "stop or fix that worker, then `echo-queue revive` what was buried"
        raise EchoQueueError(Problem(f"worker {worst}", what, fix))


def _check_sample(where: str, sample: Sample, limits: GroupLimits) -> None:
    length = len(sample.tokens)
    if not 0 < length <= limits.new_tokens:
        _refuse("shape", f"{where} has {length} tokens; model.max_new_tokens is {limits.new_tokens}")
    if len(sample.logprobs) != length:
        what = f"{where} has {len(sample.logprobs)} behaviour log-probabilities for {length} tokens"
        _refuse("logprobs", f"{what}; off-policy data cannot be corrected without them")
    if not _in_range(sample.tokens, limits.vocabulary):
        _refuse("tokens", f"{where} has token ids outside the model's vocabulary of {limits.vocabulary}")
    if not np.isfinite(sample.logprobs).all():
        what = f"{where} has behaviour log-probabilities that are not finite"
        _refuse("logprobs", f"{what}; off-policy data cannot be corrected with them")
    check_observed(where, sample.observed, limits)
    low, high = float(sample.logprobs.min()), float(sample.logprobs.max())
    if high > LOGPROB_MAX or low < LOGPROB_MIN:
        _refuse("logprobs", f"{where} has behaviour log-probabilities from {low:g} to {high:g}")
    if not math.isfinite(sample.reward) or not limits.reward_min <= sample.reward <= limits.reward_max:
        allowed = f"environment.reward_min is {limits.reward_min:g}, reward_max {limits.reward_max:g}"
        _refuse("reward", f"{where} has the reward {sample.reward:g}; {allowed}")
    if sample.finish == "abort":
        _refuse("finish", f"{where} was cut off before its end")
    if sample.finish == "length" and length != limits.new_tokens:
        what = f"{where} ends by its length with {length} tokens; model.max_new_tokens is {limits.new_tokens}"
        _refuse("finish", what)


def check_observed(where: str, observed: Sequence[Observed], limits: GroupLimits) -> None:
    """Of a sample or a partial rollout. Raises `BadGroup`."""
    if len(observed) >= limits.turns:
        what = f"{where} has {len(observed)} observations; this environment takes {limits.turns} turns at most"
        _refuse("observed", what)
    edges = [0, *(edge for part in observed for edge in part)]
    if any(later <= earlier for earlier, later in pairwise(edges)):
        _refuse("observed", f"{where} has observations {edges[1:]}, without what the model wrote before each")


def _in_range(tokens: Tokens, vocabulary: int) -> bool:
    return bool(tokens.min() >= 0 and tokens.max() < vocabulary)


def _refuse(cause: Cause, rule: str) -> NoReturn:
    raise BadGroup(cause, rule)
