"""A group's samples as text for people: each turn, the versions of the weights that sampled it, and the reward."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from echo_queue.launch.problem_output import print_wrapped
from echo_queue.queue.counts import counted
from echo_queue.records import PartialSample, Sample, Tokens

Words = Callable[[Tokens], str]
"""Decodes token ids to text."""
STYLES = {"prompt": "dim", "model": "bold green", "environment": "cyan"}
MARGIN, BORDER = 13, " │ "
LEAST = 20
"""The columns of a turn, in a terminal that has fewer as well."""


@dataclass(frozen=True)
class TranscriptPart:
    """One turn of one side, of `tokens` tokens."""

    speaker: Literal["model", "environment"]
    text: str
    tokens: int


@dataclass(frozen=True)
class Transcript:
    """One sample. `drawn`: the number of tokens that the model sampled, by the version of its weights.

    `reward` is None while the sample is in progress. `rewards`: what each reward function gave, by its name.
    """

    parts: tuple[TranscriptPart, ...]
    drawn: dict[int, int]
    reward: float | None
    finish: str | None
    rewards: dict[str, float] = field(default_factory=dict)


def transcript(sample: Sample | PartialSample, words: Words, rewards: Sequence[str] = ()) -> Transcript:
    """Splits a sample into its turns. `rewards`: the names of its group's reward functions."""
    borders = sorted({0, len(sample.tokens), *(border for part in sample.observed for border in part)})
    observed = {part.start for part in sample.observed}
    parts = tuple(
        TranscriptPart("environment" if start in observed else "model", words(sample.tokens[start:end]), end - start)
        for start, end in pairwise(borders)
    )
    if isinstance(sample, PartialSample):
        return Transcript(parts, _drawn(sample), None, sample.finish)
    given = dict(zip(rewards, sample.parts, strict=True))
    return Transcript(parts, _drawn(sample), sample.reward, sample.finish, given)


def _drawn(sample: Sample | PartialSample) -> dict[int, int]:
    observed = {position for part in sample.observed for position in range(part.start, part.end)}
    starts = [*(span.start for span in sample.spans), len(sample.tokens)]
    drawn: dict[int, int] = {}
    for span, end in zip(sample.spans, starts[1:], strict=True):
        count = len(set(range(span.start, end)) - observed)
        drawn[span.version] = drawn.get(span.version, 0) + count
    return drawn


def draw(console: Console, title: str, prompt: str | None, samples: Sequence[Transcript]) -> None:
    """Prints the samples, each turn with its speaker, in colours where there are some. Equal samples appear once.

    Lines are broken to fit a terminal, and whole in a file.
    """
    print_wrapped(console, Text(title, "bold"))
    if prompt is not None:
        _say(console, "prompt", prompt)
    for number, one in enumerate(samples):
        if one in samples[:number]:
            continue
        alike = [str(position) for position, other in enumerate(samples) if other == one]
        name = f"sample{'s' * (len(alike) > 1)} {', '.join(alike)}"
        console.print()
        _head(console, name, "  ".join(_facts(one)))
        for part in one.parts:
            _say(console, part.speaker, part.text)


def _head(console: Console, name: str, facts: str) -> None:
    """Prints a sample's name, and beside it what is known of it, whose further lines begin below the first."""
    if not console.is_terminal:
        console.print(Text.assemble((name, "bold"), "  ", facts), soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(name, "bold"), Text(facts))
    console.print(table)


def _facts(sample: Transcript) -> Iterator[str]:
    of = ", ".join(f"{name} {reward:+g}" for name, reward in sample.rewards.items())
    told = f" ({of})" if len(sample.rewards) > 1 else ""
    yield "in progress" if sample.reward is None else f"reward {sample.reward:+g}{told}"
    if sample.finish:
        yield f"ended by {sample.finish}"
    drawn = ", ".join(f"{count} by version {version}" for version, count in sample.drawn.items())
    yield f"{counted(sum(sample.drawn.values()), 'token')} sampled ({drawn})" if drawn else "no token sampled yet"
    if read := sum(part.tokens for part in sample.parts if part.speaker == "environment"):
        yield f"{read} read"


def _say(console: Console, speaker: str, text: str) -> None:
    heads, room = chain([speaker], repeat("")), max(LEAST, console.width - MARGIN - len(BORDER))
    for line in text.strip().splitlines() or [""]:
        words = Text(line, STYLES[speaker])
        for row in words.wrap(console, room) if console.is_terminal else [words]:
            console.print(Text.assemble((next(heads).rjust(MARGIN) + BORDER, "dim"), row), soft_wrap=True)
