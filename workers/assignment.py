"""A leased task in progress: everything needed to generate and score it, and how far its samples are."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from blake3 import blake3

from echo_queue.records import NOTHING, Group, PartialGroup, PartialSample, PromptRow, Sample, Task, Tokens
from workers.engines import SampleKey, SampleRequest, Sampling


@dataclass(eq=False)
class Assignment:
    """A leased task with its samples. `lineage`: the lineage of the newest weights used.

    `samples` and `rewards` are indexed by the sample's number; a reward is None until it is known.
    """

    task: Task
    row: PromptRow
    prompt: Tokens
    seed: int
    """The run's seed, from which the seeds of samples and sessions are derived."""
    limit: int
    """The most tokens of a sample."""
    sampling: Sampling
    samples: list[PartialSample]
    lineage: int = 0
    begun_s: float = 0.0
    """The time at which this worker began its first sample (monotonic clock)."""
    leased_s: float = field(default_factory=time.monotonic)
    """The time at which this worker leased the task (monotonic clock)."""
    continued: bool = field(init=False)
    """True if another worker began the samples, or this one under an earlier lease."""
    rewards: list[float | None] = field(init=False)
    parts: Mapping[str, Sequence[float]] = field(init=False, default_factory=dict)
    """What each reward function gave the samples, by its name."""

    def __post_init__(self) -> None:
        self.continued = self.begun
        self.rewards = [None] * len(self.samples)

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def held_out(self) -> bool:
        """True if it answers a round of evaluation, and is not to be trained."""
        return self.task.version is not None

    @property
    def begun(self) -> bool:
        return any(len(sample.tokens) for sample in self.samples)

    @property
    def ended(self) -> bool:
        return all(sample.finish for sample in self.samples)

    @property
    def scored(self) -> bool:
        return None not in self.rewards

    def requests(self) -> list[SampleRequest]:
        """Returns the engine's requests for the samples that have not ended."""
        return [self.request(number) for number, sample in enumerate(self.samples) if not sample.finish]

    def request(self, number: int) -> SampleRequest:
        seed = seed_of(self.seed, self.id, number, self.task.attempt, self.task.late)
        key = SampleKey(self.id, number)
        return SampleRequest(key, self.prompt, seed, self.limit, self.samples[number], self.sampling)

    def session_seed(self, number: int) -> int:
        """Returns the environment's seed of a sample, the same on every worker, in every attempt and, so that versions
        are compared by the same sessions, in every round of evaluation."""
        about = f"{self.task.set}/{self.task.index}" if self.held_out else self.id
        return seed_of(self.seed, about, number, "session")

    def oldest(self, serving: int) -> int:
        """Returns the version of the oldest token; `serving` if there is no token yet."""
        return min((span.version for sample in self.samples for span in sample.spans), default=serving)

    def from_scratch(self) -> "Assignment":
        """Returns a copy without anything that was generated. Other threads may still be busy with this one."""
        return replace(self, samples=[NOTHING] * len(self.samples), lineage=0)

    def partials(self) -> PartialGroup:
        return PartialGroup(self.id, self.lineage, tuple(self.samples))

    def group(self, worker: str) -> Group:
        """Returns the finished group. All samples must have ended and been scored."""
        return Group(
            task=self.id,
            set=self.task.set,
            epoch=self.task.epoch,
            index=self.task.index,
            attempt=self.task.attempt,
            worker=worker,
            lineage=self.lineage,
            prompt=self.prompt,
            samples=tuple(map(self._sample, range(len(self.samples)))),
            rewards=tuple(self.parts),
        )

    def _sample(self, number: int) -> Sample:
        one, reward = self.samples[number], self.rewards[number]
        assert one.finish is not None and reward is not None
        parts = tuple(values[number] for values in self.parts.values())
        return Sample(one.tokens, one.logprobs, one.spans, reward, one.finish, one.observed, parts)


def seed_of(run: int, task: str, *words: object) -> int:
    """Returns a seed of 63 bits, a different one for each run, task and words."""
    digest = blake3(" ".join(map(str, (run, task, *words))).encode()).digest(8)
    return int.from_bytes(digest, "little") >> 1
