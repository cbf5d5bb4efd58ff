"""A worker without an engine, between a real queue, tokenizer and environment: others write its samples."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from echo_queue.queue import Caller, Payloads, WorkerQueue
from echo_queue.records import Finish, Group, PartialSample, PromptRow, Span, Task, Version
from echo_queue.records.group_codec import GROUP_MAX_BYTES
from echo_queue.submission.shards import ShardReader
from tests.waiting import wait_until
from tests.workers.worker_harness import WorkerHarness
from workers.assignment import Assignment
from workers.completer import GroupCompleter, TrainingFigures
from workers.engines import Sampling
from workers.environments.scorer import Scorer
from workers.held_leases import HeldLeases
from workers.prompt_encoder import PromptEncoder


class Stage:
    """A worker without an engine: its leases, its environment and its completer."""

    def __init__(self, run: WorkerHarness, folder: Path, scorer: Scorer, max_bytes: int) -> None:
        self.run, self.config, self.scorer, self.held = run, run.config, scorer, HeldLeases()
        self.queue = WorkerQueue(Caller.connect(run.config, "worker"), Payloads(run.store, max_bytes=max_bytes))
        self.prompts = PromptEncoder.open(str(folder), run.config.model.max_prompt_tokens)
        self.completer = GroupCompleter(
            run.config,
            "w1",
            self.queue,
            scorer=scorer,
            prompts=self.prompts,
            held=self.held,
            returned=SimpleQueue(),
            figures=TrainingFigures(),
        )
        self.completer.start()

    def lease(self, count: int) -> list[Assignment]:
        """Leases tasks, whose samples the test writes."""
        tasks = self.queue.lease("w1", Version(self.run.lineage, 0), count).tasks
        self.held.add(tasks, 0)
        rows = [ShardReader(self.run.store).row(task) for task in tasks]
        return [self.assignment(task, row) for task, row in zip(tasks, rows, strict=True)]

    def assignment(self, task: Task, row: PromptRow) -> Assignment:
        samples = [written(self.prompts, "3", "stop")] * self.config.rollout.group_size
        prompt, limit = self.prompts.encode(row), self.config.model.max_new_tokens
        return Assignment(task, row, prompt, 0, limit, Sampling(), samples=samples, lineage=self.run.lineage)

    def submit(self, *assignments: Assignment) -> None:
        for assignment in assignments:
            for number in range(self.config.rollout.group_size if self.config.environment.kind == "interactive" else 1):
                self.completer.submit(assignment, number)


def written(prompts: PromptEncoder, text: str, finish: Finish, length: int | None = None) -> PartialSample:
    """A turn of `text` that ends by the stop token; with `length`, so many tokens of it."""
    ids = [*prompts._ids(text), *prompts.stop_tokens]
    if length is not None:
        ids = [*prompts._ids(text) * length][: length - 1] + prompts.stop_tokens
    tokens = np.asarray(ids, np.int32)
    return PartialSample(tokens, np.full(len(tokens), -1.0, np.float32), (Span(0, 0),), finish=finish)


@contextmanager
def stage(
    run: WorkerHarness, folder: Path, prompts: list[Any], *, max_bytes: int = GROUP_MAX_BYTES, **columns: Any
) -> Iterator[Stage]:
    run.begin(prompts, {}, **columns)
    scorer = Scorer(run.config.environment)
    try:
        scorer.wait_ready()
        one = Stage(run, folder, scorer, max_bytes)
        yield one
        one.completer.check()
        one.completer.close(60.0)
    finally:
        scorer.close()


def generated(one: Stage, groups: int) -> list[Group]:
    """Plays the engine for the samples that go on, until the groups are drained."""
    drained: list[Group] = []

    def more() -> bool:
        one.completer.check()
        while not one.completer.returned.empty():
            ended = one.completer.returned.get_nowait()
            sample, turn = ended.assignment.samples[ended.number], written(one.prompts, "7", "stop")
            room = ended.assignment.limit - len(sample.tokens)
            assert room > 0, "a sample without room goes on"
            ended.assignment.samples[ended.number] = replace(
                sample,
                tokens=np.concatenate([sample.tokens, turn.tokens[:room]]),
                logprobs=np.concatenate([sample.logprobs, turn.logprobs[:room]]),
                finish="stop" if room >= len(turn.tokens) else "length",
            )
            one.completer.submit(ended.assignment, ended.number)
        drained.extend(one.run.queue.drain(one.run.lineage, groups - len(drained)).groups)
        return len(drained) == groups

    wait_until(more, f"{groups} groups", 60.0)
    return drained
