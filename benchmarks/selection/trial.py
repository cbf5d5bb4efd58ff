"""One trial: a model is trained on a task by one method of selection, without a queue, until its tokens are used up.

Generation is on-policy: an update's groups are made by the weights before it. The functions that choose are those of a
run: the curriculum's choice (`echo_queue.queue.curriculum`), the filling of an update, and what is trained of it
(`learner.selection`).
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.selection.task import HELD_OUT_SEED_OFFSET, TASKS, Item, config_of
from echo_queue.config import Config, Learner, Selection
from echo_queue.queue import curriculum
from echo_queue.queue.curriculum import UNSEEN, Seen
from echo_queue.records import Group, PartialSample, Sample, Version
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.selection.pairs import select_samples
from learner.selection.reuse import ReuseBuffer
from learner.selection.signal import UpdateGroups
from learner.update import learn
from workers.engines.protocol import SampleKey, SampleRequest
from workers.engines.transformers.engine import TransformersEngine

HELD_OUT = 96
"""Unseen prompts, of all levels, that are answered once each for a point of the curve."""


@dataclass(frozen=True)
class Method:
    """A method of selection, and the number of groups in its update where that is not the trial's."""

    selection: Selection
    batch_groups: int = 0


METHODS = {
    "oldest first": Method(Selection()),
    "refill": Method(Selection(refill=True)),
    "Shuffle-R1": Method(Selection(pairs_kept=0.5, shuffle_rounds=2)),
    "reuse": Method(Selection(reuse_groups=8)),
    "MoPPS": Method(Selection(curriculum="mopps")),
    "DoPR": Method(Selection(curriculum="dopr"), batch_groups=1),
    "refill + MoPPS": Method(Selection(refill=True, curriculum="mopps")),
}


@dataclass(frozen=True)
class Size:
    """The size of a trial. `tokens`: generated tokens at which it ends; `apart`: those between points of the curve."""

    batch_groups: int = 16
    group_size: int = 8
    prompts: int = 1536
    tokens: int = 150_000
    apart: int = 15_000
    lr: float = 2e-4


@dataclass(frozen=True)
class Point:
    """A point of a learning curve: the held-out score of what may be learned, after so many tokens and updates."""

    generated: int
    trained: int
    updates: int
    score: float


@dataclass
class Backlog:
    """Epochs of prompts in the order in which the queue would admit them."""

    prompts: int
    method: Method
    seed: int
    order: list[int] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    seen: dict[int, Seen] = field(default_factory=dict)
    passed: int = 0

    def next(self) -> int:
        kind = self.method.selection.curriculum
        if kind == "off":
            return self._pass()
        for _ in range(min(curriculum.TAKEN, self.method.selection.curriculum_window - len(self.candidates))):
            self.candidates.append(self._pass())
        known = [self.seen.get(one, UNSEEN) for one in self.candidates]
        return self.candidates.pop(curriculum.choose(kind, known, seed=self.seed, name="a", passed=self.passed))

    def _pass(self) -> int:
        if not self.order:
            self.order = random.Random(f"{self.seed} {self.passed}").sample(range(self.prompts), self.prompts)
        self.passed += 1
        return self.order.pop()

    def note(self, group: Group) -> None:
        reward = float(np.mean([sample.reward for sample in group.samples]))
        self.seen[group.index] = self.seen.get(group.index, UNSEEN).after(len(group.samples), reward)


class Trial:
    """Trains by `method` from the base model in `base`. The same arguments give the same curve on one machine."""

    def __init__(self, task: str, method: Method, seed: int, size: Size, base: Path) -> None:
        torch.manual_seed(seed)
        self.task, self.method, self.seed, self.size = TASKS[task], method, seed, size
        self.config = _config(config_of(self.task, base.parent), method, seed, size)
        self.items = self.task.items(size.prompts, seed * 1_000_000 + 1)
        self.held_out = self.task.items(HELD_OUT, HELD_OUT_SEED_OFFSET)
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        longest = self.config.model.max_prompt_tokens + self.task.max_new_tokens
        self.engine = TransformersEngine(str(base), Version(1, 0), "float32", longest)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.policy = Policy(for_scorer(model), self.config.learner)
        self.reuse = ReuseBuffer(self.config)
        self.backlog = Backlog(size.prompts, method, seed)
        self.generated = self.trained = self.version = 0

    def curve(self) -> Iterator[Point]:
        """Yields the points of the learning curve."""
        yield self._point()
        due = self.size.apart
        while self.generated < self.size.tokens:
            self._update()
            if self.generated >= due:
                due += self.size.apart
                yield self._point()

    def _update(self) -> None:
        update = UpdateGroups(self.config.learner.batch_groups, self.method.selection.refill)
        while update.lacking > 0:
            drawn = [self.backlog.next() for _ in range(update.lacking)]
            update.add(self._groups([self.items[index] for index in drawn], drawn, self.size.group_size))
        for group in update.groups:
            self.backlog.note(group)
            self.generated += sum(len(sample.tokens) for sample in group.samples)
        groups, number = (*update.groups, *self.reuse.take(self.version)), self.version + 1
        result = learn(
            self.policy,
            groups,
            number,
            self.config.learner,
            1.0,
            select=lambda update: select_samples(update, self.method.selection, self.seed, number),
        )
        self.reuse.add(update.groups)
        self.trained += result.sums.tokens
        self.version = number
        self.engine.load(Version(1, number), self.policy.snapshot())

    def _point(self) -> Point:
        """Answers unseen prompts, of which those that count are scored."""
        items = [item for item in self.held_out if item.level.counts]
        groups = self._groups(items, range(len(items)), 4, unseen=True)
        score = float(np.mean([sample.reward for group in groups for sample in group.samples]))
        return Point(self.generated, self.trained, self.version, score)

    def _groups(
        self, items: Sequence[Item], indices: Sequence[int], samples: int, *, unseen: bool = False
    ) -> list[Group]:
        prompts = [np.array(row, np.int32) for row in self.tokenizer([item.question for item in items])["input_ids"]]
        seeds = np.random.default_rng([self.seed, self.version, self.generated, int(unseen)])
        keys = [[SampleKey(f"{at}", number) for number in range(samples)] for at in range(len(items))]
        limit = self.task.max_new_tokens
        self.engine.add(
            [
                SampleRequest(key, prompt, int(seeds.integers(2**63)), limit)
                for row, prompt in zip(keys, prompts, strict=True)
                for key in row
            ]
        )
        ended: dict[SampleKey, PartialSample] = {}
        while self.engine.running:
            ended.update(self.engine.step())
        found = []
        for item, index, row, prompt in zip(items, indices, keys, prompts, strict=True):
            texts = self.tokenizer.batch_decode([ended[key].tokens.tolist() for key in row], skip_special_tokens=True)
            made = tuple(
                Sample(one.tokens, one.logprobs, one.spans, item.score(text), one.finish)
                for one, text in zip((ended[key] for key in row), texts, strict=True)
                if one.finish is not None
            )
            found.append(Group(f"a/0/{index}", "a", 0, index, 0, "w", 1, prompt, made))
        return found


def _config(config: Config, method: Method, seed: int, size: Size) -> Config:
    learner = Learner(batch_groups=method.batch_groups or size.batch_groups, lr=size.lr)
    run = config.run.model_copy(update={"seed": seed})
    return config.model_copy(update={"run": run, "learner": learner, "selection": method.selection})


@dataclass(frozen=True)
class Outcome:
    """A trial that has ended."""

    task: str
    method: str
    seed: int
    points: tuple[Point, ...]
    wall_s: float


def run(task: str, name: str, seed: int, size: Size, base: Path) -> Outcome:
    began = time.monotonic()
    points = tuple(Trial(task, METHODS[name], seed, size, base).curve())
    return Outcome(task, name, seed, points, time.monotonic() - began)
