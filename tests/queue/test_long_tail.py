"""Longest groups first within an admission; and nothing that takes long is starved, or trained less often, for it."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from echo_queue.queue import Outcome, Queue, QueuePolicy
from echo_queue.records import Task
from tests.queue.scene import POLICY, Scene, group_of

TWO_EPOCHS = replace(POLICY, s=0, batch=4)
LENGTHS = (20, 5, 80, 10)


def complete(scene: Scene, tasks: Sequence[Task], lengths: Sequence[int]) -> None:
    groups = [group_of(task, "w1", scene.version, length=lengths[task.index]) for task in tasks]
    assert scene.queue.complete("w1", groups) == [Outcome.accepted] * len(groups)


def second_epoch(queue: Queue, policy: QueuePolicy, lengths: Sequence[int] = LENGTHS) -> list[int]:
    """The prompts in the order in which they are handed out again, all in one admission; length 0: it died."""
    scene = Scene(queue, policy, prompts=0)
    scene.submit("a", len(lengths), epochs=2)
    tasks = scene.lease(100)
    assert [task.index for task in tasks] == list(range(len(lengths)))
    for task in tasks:
        if lengths[task.index] == 0:
            queue.bury(task.id, "by hand")
    complete(scene, [task for task in tasks if lengths[task.index]], lengths)
    scene.update(len(lengths))
    return [task.index for task in scene.lease(100)]


def test_the_longest_of_the_epoch_before_are_handed_out_first(queue: Queue) -> None:
    assert second_epoch(queue, TWO_EPOCHS) == [2, 0, 3, 1]


def test_plain_order_is_that_of_admission(queue: Queue) -> None:
    assert second_epoch(queue, replace(TWO_EPOCHS, longest_first=False)) == [0, 1, 2, 3]


def test_a_prompt_that_had_no_group_yet_counts_as_the_mean_of_the_others(queue: Queue) -> None:
    assert second_epoch(queue, replace(TWO_EPOCHS, batch=5), (80, 0, 10, 9, 60)) == [0, 4, 1, 2, 3]


def test_lengths_that_are_alike_stay_in_the_order_of_admission(queue: Queue) -> None:
    assert second_epoch(queue, TWO_EPOCHS, (50, 51, 50, 51)) == [0, 1, 2, 3]


def test_tags_follow_admission_however_tasks_are_handed_out(queue: Queue) -> None:
    """Bound and pace are those of the n-th group admitted, whichever it is."""
    scene = Scene(queue, replace(TWO_EPOCHS, s=1, batch=2), prompts=0)
    scene.submit("a", 4, epochs=2)
    for _ in range(2):
        complete(scene, scene.lease(2), LENGTHS)
        scene.update(2)
    again = {task.index: task.min_pv for task in scene.lease(100)}
    assert again == {0: 1, 1: 1, 2: 2, 3: 2}


def test_a_set_of_one_epoch_remembers_nothing(queue: Queue) -> None:
    scene = Scene(queue, prompts=4)
    scene.complete(scene.lease(4))
    assert not queue.client.exists(queue.keys.lengths("a"))


def test_a_prompt_costs_one_byte(queue: Queue) -> None:
    second_epoch(queue, TWO_EPOCHS)
    assert queue.client.strlen(queue.keys.lengths("a")) == len(LENGTHS)


class Clock:
    """Six workers of one group each, and a learner that takes no time, by a clock of their own."""

    def __init__(self, scene: Scene, lengths: Sequence[int]) -> None:
        self.scene = scene
        self.lengths = lengths
        self.admitted: dict[str, int] = {}
        self.trained: dict[str, int] = {}
        self._now = 0.0
        self._idle = [f"w{number}" for number in range(6)]
        self._flying: list[tuple[float, str, Task, int]] = []
        self._hand: list[str] = []

    def step(self) -> None:
        """Who can begins; whoever ends next completes; an update once its groups are there."""
        for worker in list(self._idle):
            for task in self.scene.lease(1, worker):
                self._idle.remove(worker)
                self.admitted.setdefault(task.id, task.pv)
                ends = self._now + self.lengths[task.index]
                heapq.heappush(self._flying, (ends, worker, task, self.scene.version.number))
        self._now, worker, task, begun = heapq.heappop(self._flying)
        self._idle.append(worker)
        length = self.lengths[task.index]
        self.scene.queue.complete(worker, [group_of(task, worker, self.scene.version, begun, length=length)])
        self.scene.queue.reclaim()
        self._learn()

    def _learn(self) -> None:
        batch, version = self.scene.policy.batch, self.scene.learner_version
        drained = self.scene.drain(batch - len(self._hand))
        self._hand += [group.task for group in drained.groups]
        if len(self._hand) == batch or drained.exhausted:
            self.trained.update(dict.fromkeys(self._hand, version))
            self.scene.advance(len(self._hand), window=2.0)
            self.scene.publish(version + 1)
            self.scene.commit(self._hand)
            self._hand = []


@pytest.mark.parametrize("longest_first", [True, False])
def test_on_a_heavy_tail_every_length_is_trained_as_often_as_any_and_within_the_bound(
    queue: Queue, longest_first: bool
) -> None:
    prompts, epochs = 40, 3
    lengths = (4 + 6 * np.random.default_rng(7).pareto(1.2, prompts)).clip(4, 90).astype(int).tolist()
    scene = Scene(queue, QueuePolicy(s=3, batch=4, longest_first=longest_first), prompts=0)
    scene.submit("a", prompts, epochs=epochs)
    clock = Clock(scene, lengths)
    while len(clock.trained) < prompts * epochs:
        clock.step()
    times = Counter(int(task.split("/")[2]) for task in clock.trained)
    assert times == dict.fromkeys(range(prompts), epochs), "each prompt as often as any other"
    waited = {task: version - clock.admitted[task] for task, version in clock.trained.items()}
    # The window is two batches; a group that was late begins anew once, and then the learner keeps it a seat.
    assert max(waited.values()) <= 2 * (scene.policy.s + 1)
    slow = [task for task in waited if lengths[int(task.split("/")[2])] >= np.quantile(lengths, 0.8)]
    assert fmean(waited[task] for task in slow) - fmean(waited.values()) <= scene.policy.s
