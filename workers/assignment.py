"""A task under way: what it takes to generate and score it, and how far its samples are."""

from dataclasses import dataclass, field, replace

from blake3 import blake3

from echo_queue.records import NOTHING, Group, PartialGroup, PartialSample, PromptRow, Sample, Task, Tokens
from workers.engines import Key, Request


@dataclass(eq=False)
class Assignment:
    """`lineage`: of the newest weights used. `samples`, `rewards`: by the sample's number, as far as they are known."""

    task: Task
    row: PromptRow
    prompt: Tokens
    seed: int
    """Of the run: its samples' and sessions' seeds are derived from it."""
    limit: int
    """Tokens of a sample."""
    samples: list[PartialSample]
    lineage: int = 0
    begun_s: float = 0.0
    """When its first sample was begun here, by the monotonic clock."""
    rewards: list[float | None] = field(init=False)

    def __post_init__(self) -> None:
        self.rewards = [None] * len(self.samples)

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def begun(self) -> bool:
        return any(len(sample.tokens) for sample in self.samples)

    @property
    def ended(self) -> bool:
        return all(sample.finish for sample in self.samples)

    @property
    def scored(self) -> bool:
        return None not in self.rewards

    def requests(self) -> list[Request]:
        """For an engine: the samples that are under way."""
        return [self.request(number) for number, sample in enumerate(self.samples) if not sample.finish]

    def request(self, number: int) -> Request:
        seed = seed_of(self.seed, self.id, number, self.task.attempt, self.task.late)
        return Request(Key(self.id, number), self.prompt, seed, self.limit, self.samples[number])

    def session_seed(self, number: int) -> int:
        """Of the environment's side: the same wherever and however often the task is tried."""
        return seed_of(self.seed, self.id, number, "session")

    def oldest(self, serving: int) -> int:
        """Version of its oldest token; `serving` if it has none."""
        return min((span.version for sample in self.samples for span in sample.spans), default=serving)

    def anew(self) -> "Assignment":
        """The same without anything that was generated. Others may still be busy with this one."""
        return replace(self, samples=[NOTHING] * len(self.samples), lineage=0)

    def partials(self) -> PartialGroup:
        return PartialGroup(self.id, self.lineage, tuple(self.samples))

    def group(self, worker: str) -> Group:
        """Of samples that have all ended and been scored."""
        return Group(
            task=self.id,
            set=self.task.set,
            epoch=self.task.epoch,
            index=self.task.index,
            attempt=self.task.attempt,
            worker=worker,
            lineage=self.lineage,
            prompt=self.prompt,
            samples=tuple(map(_sample, self.samples, self.rewards)),
        )


def _sample(partial_sample: PartialSample, reward: float | None) -> Sample:
    assert partial_sample.finish is not None and reward is not None
    return Sample(
        partial_sample.tokens,
        partial_sample.logprobs,
        partial_sample.spans,
        reward,
        partial_sample.finish,
        partial_sample.observed,
    )


def seed_of(run: int, task: str, *words: object) -> int:
    """63 bits: others for each run, task and words."""
    digest = blake3(" ".join(map(str, (run, task, *words))).encode()).digest(8)
    return int.from_bytes(digest, "little") >> 1
