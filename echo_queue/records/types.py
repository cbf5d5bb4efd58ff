"""The values that cross a process border, all frozen (`docs/architecture.md`, "Words").

A *group* is the G samples of one prompt: the unit of a task, of a replay record and of an update.
Token ids are int32 and log-probabilities float32; times are milliseconds of the Redis server.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic_core import core_schema

Tokens = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]
Finish = Literal["stop", "length", "abort"]
Message = dict[str, str]


class Version(NamedTuple):
    """Names weights uniquely. `number` counts optimizer updates, `lineage` counts the learner's starts."""

    lineage: int
    number: int

    def __str__(self) -> str:
        return f"{self.lineage}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` made of a version."""
        return cls(*map(int, text.split(".")))

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        """A version is a text in JSON documents."""
        text = core_schema.str_schema(pattern="^[0-9]+[.][0-9]+$")
        written = core_schema.plain_serializer_function_ser_schema(str, return_schema=text)
        return core_schema.no_info_after_validator_function(cls.parse, text, serialization=written)


BASE = Version(0, 0)
"""The version of the model that training begins with."""


@dataclass(frozen=True)
class Published:
    """The newest weights that workers may fetch: the manifest's key and its digest (BLAKE3 hex).

    `ms`: the time of the publication by the queue's clock; 0 until the queue has it.
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
    """An immutable object that holds prompts `first … first + count − 1` of a set, one JSON document per line."""

    object: str
    first: int
    count: int


@dataclass(frozen=True)
class Task:
    """One group to generate.

    `pv` is the learner's version at admission; `min_pv` is the oldest version that may generate the task.
    `late` counts how often its group came back too old. `stream` ("tasks", "retry" or "evaluation") and `entry` (the
    entry's id) say where the task lies in Redis. `version`: the only weights that may generate it, those of its round
    of evaluation; None: it is to be trained.
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
    version: Version | None = None


class Span(NamedTuple):
    """The tokens from `start` up to the next span's start, all sampled by `version`."""

    start: int
    version: int


class Observed(NamedTuple):
    """The tokens from `start` up to `end`, written by the environment. The model reads them; no update trains them."""

    start: int
    end: int


@dataclass(frozen=True, eq=False)
class PartialSample:
    """A trajectory without its reward, perhaps unfinished: T tokens that follow the prompt, sampled or observed.

    `logprobs` [T] are the behaviour log-probabilities, 0 where a token was observed. `spans` begin at token 0; a sample
    without tokens has none. `finish` is None while the sample goes on.
    """

    tokens: Tokens
    logprobs: Logprobs
    spans: tuple[Span, ...]
    observed: tuple[Observed, ...] = ()
    finish: Finish | None = None


NOTHING = PartialSample(np.empty(0, np.int32), np.empty(0, np.float32), ())
"""A sample that was not begun."""


@dataclass(frozen=True, eq=False)
class PartialGroup:
    """The progress of the G samples of one task. `lineage` is that of the newest weights used."""

    task: str
    lineage: int
    samples: tuple[PartialSample, ...]


@dataclass(frozen=True, eq=False)
class PartialSegment:
    """The tokens that the G samples of one task gained since the segment before.

    `begins` [G]: the tokens that each sample had before; all 0 in the first segment. `gained`: the tokens behind those.
    Its spans and observed ranges count from there.
    """

    begins: tuple[int, ...]
    gained: PartialGroup


@dataclass(frozen=True, eq=False)
class Sample:
    """One trajectory: T tokens, their behaviour log-probabilities (both [T], as in `PartialSample`), its reward.

    `parts`: what each of the group's reward functions gave it, in the order of `Group.rewards`.
    """

    tokens: Tokens
    logprobs: Logprobs
    spans: tuple[Span, ...]
    reward: float
    finish: Finish
    observed: tuple[Observed, ...] = ()
    parts: tuple[float, ...] = ()

    @property
    def version_sum(self) -> int:
        """The sum of the versions of its tokens."""
        ends = [*(span.start for span in self.spans[1:]), len(self.tokens)]
        return sum((end - start) * version for (start, version), end in zip(self.spans, ends, strict=True))


@dataclass(frozen=True, eq=False)
class Group:
    """The G scored samples of one task; the prompt ([P] tokens) is held once.

    `lineage` is that of the newest weights used. The lag of a group counts from its oldest token. `rewards` names the
    reward functions whose weighted sum is each sample's reward; an environment of another kind has none.
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
    rewards: tuple[str, ...] = ()

    @property
    def oldest(self) -> int:
        return min(span.version for sample in self.samples for span in sample.spans)

    @property
    def newest(self) -> int:
        return max(span.version for sample in self.samples for span in sample.spans)
