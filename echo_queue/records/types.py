"""Everything that crosses a process border, as frozen values (`docs/architecture.md`, "Words").

A *group* is the G samples of one prompt: the unit of a task, of a replay record and of an update.
Token ids are int32 and log-probabilities float32; times are milliseconds of the Redis server.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]
Finish = Literal["stop", "length", "abort"]
Message = dict[str, str]


class Version(NamedTuple):
    """Names weights uniquely. `number` counts optimizer updates; `lineage` the learner's restarts."""

    lineage: int
    number: int

    def __str__(self) -> str:
        return f"{self.lineage}.{self.number}"


BASE = Version(0, 0)
"""The model that training begins with."""


@dataclass(frozen=True)
class Published:
    """The newest weights that workers may fetch: where the manifest is and its digest (BLAKE3 hex).

    `ms`: when the queue was told of it; 0 until then.
    """

    version: Version
    manifest: str
    digest: str
    ms: int = field(default=0, compare=False)


@dataclass(frozen=True)
class PromptRow:
    """One normalised prompt: text or chat messages; the other columns reach the environment."""

    prompt: str | list[Message]
    columns: dict[str, object]


@dataclass(frozen=True)
class PromptShard:
    """An immutable object holding prompts `first … first + count − 1` of a set, one JSON per line."""

    object: str
    first: int
    count: int


@dataclass(frozen=True)
class Task:
    """One group to generate.

    `pv` is the learner's version at admission; `min_pv` the oldest version that may generate it.
    `late` counts how often its group came back too old. `stream` and `entry` name its place in
    Redis ("tasks" or "retry", and the entry's id).
    """

    id: str
    set: str
    epoch: int
    index: int
    shard: PromptShard
    attempt: int
    late: int
    pv: int
    min_pv: int
    lineage: int
    stream: str
    entry: str


class Span(NamedTuple):
    """Tokens from `start` up to the next span's start were sampled by `version`."""

    start: int
    version: int


class Observed(NamedTuple):
    """Tokens from `start` up to `end` were written by the environment: the model reads them, nobody trains on them."""

    start: int
    end: int


@dataclass(frozen=True, eq=False)
class PartialSample:
    """A trajectory without its reward, perhaps under way: T tokens that follow the prompt, sampled or observed.

    `logprobs` [T] are the behaviour log-probabilities, 0 where a token was observed. `spans` begin at token 0; before
    the first token there are none. `finish`: None while it goes on.
    """

    tokens: Tokens
    logprobs: Logprobs
    spans: tuple[Span, ...]
    observed: tuple[Observed, ...] = ()
    finish: Finish | None = None


NOTHING = PartialSample(np.empty(0, np.int32), np.empty(0, np.float32), ())
"""Of a sample that was not begun."""


@dataclass(frozen=True, eq=False)
class PartialGroup:
    """How far the G samples of one task are. `lineage` is that of the newest weights used."""

    task: str
    lineage: int
    samples: tuple[PartialSample, ...]


@dataclass(frozen=True, eq=False)
class Sample:
    """One trajectory: T tokens, their behaviour log-probabilities (both [T], as in `PartialSample`), its reward."""

    tokens: Tokens
    logprobs: Logprobs
    spans: tuple[Span, ...]
    reward: float
    finish: Finish
    observed: tuple[Observed, ...] = ()

    @property
    def version_sum(self) -> int:
        """Of the versions of its tokens."""
        ends = [*(span.start for span in self.spans[1:]), len(self.tokens)]
        return sum((end - start) * version for (start, version), end in zip(self.spans, ends, strict=True))


@dataclass(frozen=True, eq=False)
class Group:
    """The G scored samples of one task; the prompt ([P] tokens) is held once.

    `lineage` is that of the newest weights used; the lag of a group counts from its oldest token.
    """

    task: str
    set: str
    epoch: int
    index: int
    attempt: int
    worker: str
    lineage: int
    prompt: Tokens
    samples: tuple[Sample, ...]

    @property
    def oldest(self) -> int:
        return min(span.version for sample in self.samples for span in sample.spans)

    @property
    def newest(self) -> int:
        return max(span.version for sample in self.samples for span in sample.spans)
