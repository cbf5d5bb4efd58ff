"""The answers of a round of evaluation, and the line of figures that is made of them.

A line is JSON, and is never changed: a copy of it, in Redis or in a file, is the same line.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pydantic import TypeAdapter, ValidationError

from echo_queue import documents
from echo_queue.evaluation import statistics
from echo_queue.records import Finish, Group, Tokens, Version


@dataclass(frozen=True, eq=False)
class Answer:
    """One answer: its reward, its length in tokens, how it ended, and its tokens; None where these are not kept."""

    reward: float
    length: int
    finish: Finish
    tokens: Tokens | None = None


@dataclass(frozen=True, eq=False)
class PromptAnswers:
    """The answers to prompt `index` of a set. A prompt that failed has none, and the `reason`.

    `prompt`: its tokens; None where they are not kept.
    """

    index: int
    answers: tuple[Answer, ...] = ()
    reason: str = ""
    prompt: Tokens | None = None

    @classmethod
    def of(cls, group: Group, *, tokens: bool) -> "PromptAnswers":
        """Returns the answers in a group. `tokens`: whether those of prompt and answers are kept."""
        answers = (
            Answer(one.reward, len(one.tokens), one.finish, one.tokens.copy() if tokens else None)
            for one in group.samples
        )
        return cls(group.index, tuple(answers), prompt=group.prompt.copy() if tokens else None)

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(answer.reward for answer in self.answers)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of the answers to some prompts; None where no prompt was answered."""

    failed: int = 0
    """Prompts that no worker could answer. They are in no figure."""
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval that holds the true mean in 95 of 100 evaluations; None for fewer than two prompts."""
    pass_at: dict[str, float] | None = None
    """The unbiased pass@k, by k."""
    truncated: float | None = None
    """The share of the answers that were cut off at their largest length."""
    tokens: float | None = None
    """Mean length of an answer, in tokens."""

    @property
    def figure(self) -> str:
        """Returns the mean with its interval; a dash if there is none."""
        return "–" if self.mean is None else f"{self.mean:.2f}{interval(self.low, self.high, '.2f')}"

    def told(self, prompts: int, form: str = ".2f") -> str:
        """Returns all of it for a person, of so many prompts. `form`: that of a number."""
        if self.mean is None:
            return f"all {prompts:,} prompts failed"
        told = [f"{self.mean:{form}}{interval(self.low, self.high, form)} of {prompts - self.failed:,} prompts"]
        told += [f"pass@{k} {share:{form}}" for k, share in (self.pass_at or {}).items()]
        told += [f"{self.truncated:.0%} cut off"] if self.truncated else []
        told += [f"{self.failed:,} failed"] if self.failed else []
        return ", ".join(told)


def interval(low: float | None, high: float | None, form: str) -> str:
    """Returns an interval behind its mean, as " [0.65, 0.77]"; nothing if there is none."""
    return "" if low is None or high is None else f" [{low:{form}}, {high:{form}}]"


@dataclass(frozen=True)
class EvaluationResult(Figures):
    """The result of a round for one evaluation, and the line about it."""

    evaluation: str
    version: Version
    round: int
    update: int
    """Number of updates in the version."""
    prompts: int
    """Number of prompts; of a round that was given up, of those that were answered by then."""
    samples: int
    """Number of answers to each prompt."""
    seconds: float = 0.0
    """Time from asking to the last answer, as far as the learner saw it that concluded the round."""
    time_s: float = 0.0
    """When the round was concluded, in seconds since the epoch."""
    given_up: str = ""
    """Why the round was given up; empty if it was answered."""
    best: bool = False
    """The mean is greater than that of every version before."""

    @property
    def line(self) -> bytes:
        return documents.encode(self)

    def __str__(self) -> str:
        """Returns the line for a log: "held-out at version 1.20: 0.71 [0.65, 0.77] of 200 prompts, pass@4 0.90"."""
        where = f"{self.evaluation} at version {self.version}"
        if self.given_up:
            return f"{where}: given up, {self.prompts:,} answered: {self.given_up}"
        return f"{where}: {self.told(self.prompts)}"


RESULTS = TypeAdapter(EvaluationResult)


def result_of(line: bytes) -> EvaluationResult | None:
    """Returns the result that a line tells; None for a line that is torn or of another release."""
    try:
        return RESULTS.validate_json(line)
    except ValidationError:
        return None


def figures_of(answered: Sequence[PromptAnswers], success: float) -> Figures:
    """Returns the figures of answers. `success`: the least reward of an answer that succeeds."""
    rewards = [one.rewards for one in answered if one.answers]
    answers = [answer for one in answered for answer in one.answers]
    failed = len(answered) - len(rewards)
    estimate = statistics.mean_of(rewards)
    if estimate is None:
        return Figures(failed=failed)
    return Figures(
        failed=failed,
        mean=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        pass_at={str(k): share for k, share in statistics.pass_at(rewards, success).items()},
        truncated=fmean(answer.finish == "length" for answer in answers),
        tokens=fmean(answer.length for answer in answers),
    )


def summarise(asked: EvaluationResult, answered: Sequence[PromptAnswers], success: float) -> EvaluationResult:
    """Returns the result with its figures. `success`: the least reward of an answer that succeeds."""
    return replace(asked, **vars(figures_of(answered, success)))


def curves(results: Iterable[EvaluationResult]) -> dict[str, list[EvaluationResult]]:
    """Returns the results of the surviving history, by evaluation and version.

    A later lineage's result abandons those from its number on. A round that was given up is there unless its version
    was answered after all.
    """
    found: dict[str, list[EvaluationResult]] = {}
    for result in sorted(results, key=lambda one: (one.version, not one.given_up, one.time_s)):
        curve = found.setdefault(result.evaluation, [])
        while curve and _abandons(result, curve[-1]):
            curve.pop()
        curve.append(result)
    return found


def _abandons(later: EvaluationResult, earlier: EvaluationResult) -> bool:
    if later.version.lineage > earlier.version.lineage:
        return later.version.number <= earlier.version.number
    return later.version == earlier.version


def best_mean(results: Iterable[EvaluationResult]) -> float:
    """Returns the greatest mean; −∞ if there is none."""
    return max((one.mean for one in results if one.mean is not None), default=-math.inf)


def best_of(results: Iterable[EvaluationResult]) -> dict[str, EvaluationResult]:
    """Returns, for each evaluation, the first result of the surviving history whose mean no other exceeds."""
    found = {}
    for evaluation, curve in curves(results).items():
        if answered := [one for one in curve if one.mean is not None and not one.given_up]:
            found[evaluation] = max(answered, key=lambda one: one.mean or 0.0)
    return found
