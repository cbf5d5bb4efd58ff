"""What `echo-queue eval` prints: the figures of each set and, against another file, the difference by prompt."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from echo_queue.errors import EchoQueueError, Problem
from echo_queue.evaluation import statistics
from echo_queue.evaluation.answers_file import Asked, AskedSet, PromptLine
from echo_queue.evaluation.results import Figures, figures_of, interval

MOST_CHANGED = 5
NUMBER = ".3f"
Rewards = Mapping[int, Sequence[float]]
"""The rewards of a model's answers, by the prompt's index."""


@dataclass(frozen=True)
class Failure:
    """A reason for which `prompts` prompts failed in all attempts."""

    reason: str
    prompts: int


@dataclass(frozen=True)
class ChangedPrompt:
    """A prompt with the mean rewards of both models."""

    index: int
    other: float
    mean: float

    @property
    def change(self) -> float:
        return self.mean - self.other


@dataclass(frozen=True)
class SetDifference:
    """By how much a model is better than the `other` one, over the `prompts` prompts that both have answered.

    `low`, `high`: as in `Figures`. `changed`: the prompts whose mean rewards differ most.
    """

    other: str
    prompts: int
    difference: float | None
    low: float | None
    high: float | None
    changed: tuple[ChangedPrompt, ...]


@dataclass(frozen=True)
class SetFigures(Figures):
    """The figures of a set: of how many prompts, why some of them failed, and those beside another model's."""

    evaluation: str
    prompts: int
    samples: int
    failures: tuple[Failure, ...]
    against: SetDifference | None


@dataclass(frozen=True)
class EvaluationDocument:
    """`eval`: what one model has answered. `file`: all its answers."""

    model: str
    digest: str
    file: str
    sets: tuple[SetFigures, ...]


def refuse_unlike(asked: Asked, other: Asked, path: Path) -> None:
    """Raises `EchoQueueError` unless every set that is asked was asked of the other model as well."""
    theirs = {one.name: one.digest for one in other.sets}
    for one in asked.sets:
        if theirs.get(one.name) != one.digest:
            what = f"has no answers to these prompts of {one.name}"
            fix = "compare with a file of the same sets, whose prompts are the same"
            raise EchoQueueError(Problem(str(path), what, fix))


def document_of(
    asked: Asked, file: Path, lines: Sequence[PromptLine], against: tuple[Asked, Sequence[PromptLine]] | None
) -> EvaluationDocument:
    """Returns the figures of what was answered. `against`: another model and its answers."""
    sets = tuple(_figures(one, _of(one, lines), against) for one in asked.sets)
    return EvaluationDocument(asked.model, asked.digest, str(file), sets)


def _of(asked: AskedSet, lines: Sequence[PromptLine]) -> list[PromptLine]:
    return [line for line in lines if line.set == asked.name]


def _figures(
    asked: AskedSet, lines: Sequence[PromptLine], against: tuple[Asked, Sequence[PromptLine]] | None
) -> SetFigures:
    figures = figures_of([line.answered for line in lines], asked.success)
    failures = Counter(line.reason.strip().splitlines()[-1] for line in lines if line.reason.strip())
    difference = None if against is None else _difference(against[0].model, _of(asked, against[1]), lines)
    return SetFigures(
        asked.name,
        asked.prompts,
        asked.samples,
        **vars(figures),
        failures=tuple(Failure(reason, prompts) for reason, prompts in failures.most_common()),
        against=difference,
    )


def _difference(model: str, theirs: Sequence[PromptLine], ours: Sequence[PromptLine]) -> SetDifference:
    before, now = _rewards(theirs), _rewards(ours)
    found = statistics.difference(before, now)
    if found is None:
        return SetDifference(model, 0, None, None, None, ())
    both = (ChangedPrompt(one, fmean(before[one]), fmean(now[one])) for one in sorted(before.keys() & now.keys()))
    changed = sorted((one for one in both if one.change), key=lambda one: -abs(one.change))[:MOST_CHANGED]
    return SetDifference(model, found.prompts, found.mean, found.low, found.high, tuple(changed))


def _rewards(lines: Sequence[PromptLine]) -> Rewards:
    return {line.index: line.answered.rewards for line in lines if line.answers}


def told(document: EvaluationDocument) -> Iterator[str]:
    """Yields the lines for a person."""
    for one in document.sets:
        yield f"{one.evaluation}, {document.model}: {one.told(one.prompts, NUMBER)}"
        for failure in one.failures:
            yield f"  {failure.prompts:,} failed: {failure.reason}"
        if one.against is not None:
            yield from _difference_told(one.against)
    yield f"answers: {document.file}"


def _difference_told(one: SetDifference) -> Iterator[str]:
    if one.difference is None:
        yield f"  against {one.other}: no prompt was answered by both"
        return
    figure = f"{one.difference:+{NUMBER}}{interval(one.low, one.high, f'+{NUMBER}')}"
    yield f"  against {one.other}: {figure} over {one.prompts:,} prompts, prompt by prompt"
    for prompt in one.changed:
        yield f"    prompt {prompt.index:,}: {prompt.other:.3f} → {prompt.mean:.3f}"
