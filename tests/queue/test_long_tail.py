"""Longest groups first within an admission, as the prompt's own last one tells or those of prompts like it; and nothing
that takes long is starved, or trained less often, for it."""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from echo_queue.errors import PromptError
from echo_queue.queue import Chunk, Outcome, PromptSet, RunRules
from echo_queue.records import PromptShard, Task
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of

TWO_EPOCHS = replace(RULES, s=0, batch=4)
LENGTHS = (20, 5, 80, 10)


def complete(harness: QueueHarness, tasks: Sequence[Task], lengths: Sequence[int]) -> None:
    groups = [group_of(task, "w1", harness.version, length=lengths[task.index]) for task in tasks]
    assert harness.queue.complete("w1", groups) == [Outcome.accepted] * len(groups)


def leased(harness: QueueHarness) -> list[Task]:
    """All that may be, however many are handed out at once."""
    found: list[Task] = []
    while tasks := harness.lease(1000):
        found += tasks
    return found


def second_epoch(queue: Clients, rules: RunRules, lengths: Sequence[int] = LENGTHS) -> list[int]:
    """The prompts in the order in which they are handed out again, all in one admission; length 0: it died."""
    harness = QueueHarness(queue, rules, prompts=0)
    harness.submit("a", len(lengths), epochs=2)
    tasks = harness.lease(100)
    assert [task.index for task in tasks] == list(range(len(lengths)))
    for task in tasks:
        if lengths[task.index] == 0:
            queue.bury(task.id, "by hand")
    complete(harness, [task for task in tasks if lengths[task.index]], lengths)
    harness.update(len(lengths))
    return [task.index for task in leased(harness)]


def test_the_longest_of_the_epoch_before_are_handed_out_first(queue: Clients) -> None:
    assert second_epoch(queue, TWO_EPOCHS) == [2, 0, 3, 1]


def test_plain_order_is_that_of_admission(queue: Clients) -> None:
    assert second_epoch(queue, replace(TWO_EPOCHS, longest_first=False)) == [0, 1, 2, 3]


def test_a_prompt_that_had_no_group_yet_counts_as_the_mean_of_the_others(queue: Clients) -> None:
    assert second_epoch(queue, replace(TWO_EPOCHS, batch=5), (80, 0, 10, 9, 60)) == [0, 4, 1, 2, 3]


def test_lengths_that_are_alike_stay_in_the_order_of_admission(queue: Clients) -> None:
    assert second_epoch(queue, TWO_EPOCHS, (50, 51, 50, 51)) == [0, 1, 2, 3]


def test_tags_follow_admission_however_tasks_are_handed_out(queue: Clients) -> None:
    """Bound and pace are those of the n-th group admitted, whichever it is."""
    harness = QueueHarness(queue, replace(TWO_EPOCHS, s=1, batch=2), prompts=0)
    harness.submit("a", 4, epochs=2)
    for _ in range(2):
        complete(harness, harness.lease(2), LENGTHS)
        harness.update(2)
    again = {task.index: task.min_pv for task in leased(harness)}
    assert again == {0: 1, 1: 1, 2: 2, 3: 2}


def test_a_prompt_costs_one_byte(queue: Clients) -> None:
    second_epoch(queue, TWO_EPOCHS)
    assert queue.client.strlen(queue.keys.lengths("a")) == len(LENGTHS)


@pytest.mark.parametrize("longest_first", [True, False])
def test_the_long_ones_go_to_whoever_asks_next_and_never_two_at_once(queue: Clients, longest_first: bool) -> None:
    harness = QueueHarness(queue, replace(TWO_EPOCHS, batch=6, longest_first=longest_first), prompts=0)
    harness.submit("a", 6, epochs=2)
    complete(harness, harness.lease(6), (10, 90, 9, 11, 80, 10))
    harness.update(6)
    shares = [[task.index for task in harness.lease(4, worker)] for worker in ("w1", "w2", "w3")]
    assert shares == ([[1], [4], [3, 0, 5, 2]] if longest_first else [[0, 1, 2, 3], [4, 5], []])


def test_a_long_one_that_came_back_is_still_one(queue: Clients) -> None:
    harness = QueueHarness(queue, TWO_EPOCHS, prompts=0)
    harness.submit("a", 4, epochs=2)
    complete(harness, harness.lease(4), (10, 90, 9, 10))
    harness.update(4)
    harness.lease(1)
    harness.expire()
    assert [len(harness.lease(4, worker)) for worker in ("w2", "w3")] == [1, 3]


# Prompts that are alike -----------------------------------------------------------------------------------------------

FOUR = replace(RULES, s=0, batch=4)


def alike(queue: Clients, rules: RunRules, buckets: Sequence[int], epochs: int = 1) -> QueueHarness:
    """A set of prompts of these buckets, all of the first epoch."""
    harness = QueueHarness(queue, rules, prompts=0)
    size = len(buckets)
    queue.declare(PromptSet("a", "source", epochs=epochs), [Chunk(0, 0, size)])
    queue.submit("a", 0, PromptShard("shard", 0, size), bytes(buckets))
    return harness


def order(harness: QueueHarness, lengths: Sequence[int] = ()) -> list[int]:
    """Leases, completes and trains the next tasks; returns their prompt indices in the order of the lease."""
    tasks = leased(harness)
    complete(harness, tasks, lengths or [3] * 1000)
    harness.update(len(tasks))
    return [task.index for task in tasks]


def test_in_the_first_epoch_prompts_are_as_long_as_those_like_them(queue: Clients) -> None:
    harness = alike(queue, FOUR, [1, 2, 3, 2, 3, 1, 2, 3])
    assert order(harness, [5, 20, 80, 20, 0, 0, 0, 0]) == [0, 1, 2, 3]
    assert order(harness) == [4, 7, 6, 5]


def test_a_bucket_of_which_nothing_is_known_counts_as_the_mean_of_the_others(queue: Clients) -> None:
    harness = alike(queue, FOUR, [1, 3, 1, 3, 1, 2, 0, 3])
    assert order(harness, [5, 80] * 4) == [0, 1, 2, 3]
    assert order(harness) == [7, 5, 6, 4]


def test_a_prompts_own_group_tells_more_than_those_like_it(queue: Clients) -> None:
    harness = alike(queue, FOUR, [1, 2, 1, 2], epochs=2)
    order(harness, [5, 80, 90, 4])
    assert order(harness) == [2, 1, 0, 3]


def test_a_bucket_follows_what_its_prompts_do_now(queue: Clients) -> None:
    """Half of what it was told counts no more once there is much of it."""
    size = 128
    harness = alike(queue, replace(RULES, s=0, batch=size), [1, 2] * (size // 2) * 3)
    for lengths in ([5, 20], [30, 20]):
        order(harness, lengths * (3 * size))
    assert order(harness)[: size // 2] == list(range(2 * size, 3 * size, 2))


def test_buckets_of_another_number_than_prompts_are_refused(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=0)
    queue.declare(PromptSet("a", "source"), [Chunk(0, 0, 3)])
    with pytest.raises(PromptError, match="2 buckets for 3 prompts"):
        queue.submit("a", 0, PromptShard("shard", 0, 3), b"ab")
    harness.check()


@pytest.mark.parametrize("words", [b"", b"x", b"0 5", b"-1 5", b"9" * 400 + b" 1", b"1 " + b"9" * 400])
def test_whatever_a_worker_wrote_there_tasks_are_handed_out_and_completed(queue: Clients, words: bytes) -> None:
    harness = alike(queue, FOUR, [1, 2] * 6)
    order(harness, LENGTHS * 3)
    queue.client.hset(queue.keys.buckets("a"), "1", words)
    assert sorted(order(harness)) == [4, 5, 6, 7]
    assert sorted(order(harness)) == [8, 9, 10, 11]


class Clock:
    """Six workers of one group each, and a learner that takes no time, by a clock of their own."""

    def __init__(self, harness: QueueHarness, lengths: Sequence[int]) -> None:
        self.harness = harness
        self.lengths = lengths
        self.admitted: dict[str, int] = {}
        self.trained: dict[str, int] = {}
        self._now = 0.0
        self._idle = [f"w{number}" for number in range(6)]
        self._flying: list[tuple[float, str, Task, int]] = []
        self._hand: list[str] = []

    def step(self) -> None:
        """Lets idle workers begin and the next one complete; makes an update once its groups are there."""
        for worker in list(self._idle):
            for task in self.harness.lease(1, worker):
                self._idle.remove(worker)
                self.admitted.setdefault(task.id, task.pv)
                ends = self._now + self.lengths[task.index]
                heapq.heappush(self._flying, (ends, worker, task, self.harness.version.number))
        self._now, worker, task, begun = heapq.heappop(self._flying)
        self._idle.append(worker)
        length = self.lengths[task.index]
        self.harness.queue.complete(worker, [group_of(task, worker, self.harness.version, begun, length=length)])
        self.harness.queue.reclaim()
        self._learn()

    def _learn(self) -> None:
        batch, version = self.harness.rules.batch, self.harness.learner_version
        drained = self.harness.drain(batch - len(self._hand))
        self._hand += [group.task for group in drained.groups]
        if len(self._hand) == batch or drained.exhausted:
            self.trained.update(dict.fromkeys(self._hand, version))
            self.harness.advance(len(self._hand), window=2.0)
            self.harness.publish(version + 1)
            self.harness.commit(self._hand)
            self._hand = []


@pytest.mark.parametrize("longest_first", [True, False])
def test_on_a_heavy_tail_every_length_is_trained_as_often_as_any_and_within_the_bound(
    queue: Clients, longest_first: bool
) -> None:
    prompts, epochs = 40, 3
    lengths = (4 + 6 * np.random.default_rng(7).pareto(1.2, prompts)).clip(4, 90).astype(int).tolist()
    harness = QueueHarness(queue, RunRules(s=3, batch=4, longest_first=longest_first), prompts=0)
    harness.submit("a", prompts, epochs=epochs)
    clock = Clock(harness, lengths)
    while len(clock.trained) < prompts * epochs:
        clock.step()
    times = Counter(int(task.split("/")[2]) for task in clock.trained)
    assert times == dict.fromkeys(range(prompts), epochs), "each prompt as often as any other"
    waited = {task: version - clock.admitted[task] for task, version in clock.trained.items()}
    # The window is two batches; a group that was late begins from scratch once, and then the learner keeps it a seat.
    assert max(waited.values()) <= 2 * (harness.rules.s + 1)
    slow = [task for task in waited if lengths[int(task.split("/")[2])] >= np.quantile(lengths, 0.8)]
    assert fmean(waited[task] for task in slow) - fmean(waited.values()) <= harness.rules.s


def test_a_set_whose_column_was_wrong_is_declared_again_with_another_one(queue: Clients) -> None:
    queue.configure(RULES)
    chunk = Chunk(0, 0, 9, "digest")
    assert queue.declare(PromptSet("a", "source", length_feature="levle"), [chunk])
    assert queue.reject("a", chunk, "no column `levle`")
    assert not queue.declare(PromptSet("a", "source", length_feature="level"), [chunk])
    waiting = queue.waiting_chunk("a", 0)
    assert waiting is not None and waiting.length_feature == "level"
