"""A group's samples as text for people: who said what, which weights drew it, and what it was worth."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rich.console import Console
from rich.text import Text

from echo_queue.records import PartialSample, Sample, Tokens

Words = Callable[[Tokens], str]
"""Token ids as text."""
STYLES = {"prompt": "dim", "model": "bold green", "environment": "cyan"}
MARGIN = 13


@dataclass(frozen=True)
class TranscriptPart:
    """What one side said at a time, in `tokens` tokens."""

    speaker: Literal["model", "environment"]
    text: str
    tokens: int


@dataclass(frozen=True)
class Transcript:
    """One sample. `drawn`: the tokens that the model drew, by the version of their weights; `reward`: None while it is
    under way."""

    parts: tuple[TranscriptPart, ...]
    drawn: dict[int, int]
    reward: float | None
    finish: str | None


def transcript(sample: Sample | PartialSample, words: Words) -> Transcript:
    borders = sorted({0, len(sample.tokens), *(border for part in sample.observed for border in part)})
    observed = {part.start for part in sample.observed}
    parts = tuple(
        TranscriptPart("environment" if start in observed else "model", words(sample.tokens[start:end]), end - start)
        for start, end in pairwise(borders)
    )
    reward = sample.reward if isinstance(sample, Sample) else None
    return Transcript(parts, _drawn(sample), reward, sample.finish)


def _drawn(sample: Sample | PartialSample) -> dict[int, int]:
    observed = {place for part in sample.observed for place in range(*part)}
    starts = [*(span.start for span in sample.spans), len(sample.tokens)]
    drawn: dict[int, int] = {}
    for span, end in zip(sample.spans, starts[1:], strict=True):
        count = len(set(range(span.start, end)) - observed)
        drawn[span.version] = drawn.get(span.version, 0) + count
    return drawn


def draw(console: Console, title: str, prompt: str | None, samples: Sequence[Transcript]) -> None:
    """In colours where there are some; each line begins with who speaks. Samples that are alike are told once."""
    console.print(Text(title, "bold"), soft_wrap=True)
    if prompt is not None:
        _say(console, "prompt", prompt)
    for number, one in enumerate(samples):
        if one in samples[:number]:
            continue
        alike = [str(place) for place, other in enumerate(samples) if other == one]
        name = f"sample{'s' * (len(alike) > 1)} {', '.join(alike)}"
        console.print()
        console.print(Text.assemble((name, "bold"), "  ", "  ".join(_facts(one))), soft_wrap=True)
        for part in one.parts:
            _say(console, part.speaker, part.text)


def _facts(sample: Transcript) -> Iterator[str]:
    yield "under way" if sample.reward is None else f"reward {sample.reward:+g}"
    if sample.finish:
        yield f"ended by {sample.finish}"
    drawn = ", ".join(f"{count} by version {version}" for version, count in sample.drawn.items())
    yield f"{sum(sample.drawn.values())} tokens drawn ({drawn})" if drawn else "nothing drawn yet"
    if read := sum(part.tokens for part in sample.parts if part.speaker == "environment"):
        yield f"{read} read"


def _say(console: Console, speaker: str, text: str) -> None:
    for place, line in enumerate(text.strip().splitlines() or [""]):
        head = (speaker if place == 0 else "").rjust(MARGIN) + " │ "
        console.print(Text.assemble((head, "dim"), (line, STYLES[speaker])), soft_wrap=True)
