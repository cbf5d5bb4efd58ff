"""The curriculum decides which waiting prompt is admitted next, and never how often one is trained."""

from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from echo_queue.queue import Order, RunRules, curriculum
from echo_queue.queue.curriculum import UNSEEN, Curriculum, Seen
from echo_queue.records import Group, Task
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, group_of

RULES = RunRules(s=1, batch=4, pace=False, curriculum="mopps")
PROMPTS = 12
HOPEFUL = range(4, 8)
"""Half of the samples of these prompts succeed, none of those before them, and all of those behind them."""


class Taught(QueueHarness):
    def complete_by_difficulty(self, tasks: tuple[Task, ...]) -> None:
        self.queue.complete("w1", [self._group(task) for task in tasks])
        self.check()

    def _group(self, task: Task) -> Group:
        made, index = group_of(task, "w1", self.version), task.index
        rewards = (0.0, 1.0) if index in HOPEFUL else (float(index > 7),) * 2
        samples = tuple(replace(one, reward=reward) for one, reward in zip(made.samples, rewards, strict=True))
        return replace(made, samples=samples)

    def train(self) -> list[int]:
        """Completes all that is admitted, and trains a batch; returns the prompts that were leased."""
        tasks = self.lease(1000)
        self.complete_by_difficulty(tasks)
        self.update()
        return [task.index for task in tasks]


def trained_order(run: Taught) -> list[int]:
    order = []
    while run.queue.audit().trained != run.queue.audit().submitted:
        order += run.train()
    return order


@pytest.mark.parametrize("kind", ["mopps", "dopr"])
def test_prompts_that_teach_come_first_and_each_is_trained_once_for_each_epoch(
    queue: Clients, kind: Curriculum
) -> None:
    run = Taught(queue, replace(RULES, curriculum=kind, batch=1), prompts=0)
    run.submit("a", PROMPTS, epochs=6)
    order = trained_order(run)
    assert Counter(order) == dict.fromkeys(range(PROMPTS), 6)
    first, last = order[: len(order) // 2], order[len(order) // 2 :]
    assert sum(index in HOPEFUL for index in first) > 2 * sum(index in HOPEFUL for index in last)


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize("window", [1, 3])
def test_a_small_window_loses_nothing_of_a_set_that_comes_in_chunks(queue: Clients, order: Order, window: int) -> None:
    run = Taught(queue, replace(RULES, curriculum_window=window), prompts=0)
    run.submit("a", PROMPTS, chunk=5, order=order, epochs=2)
    run.submit("b", 3)
    indices = trained_order(run)
    assert Counter(indices) == {**dict.fromkeys(range(PROMPTS), 2), **dict.fromkeys(range(3), 3)}


def test_what_waits_for_a_choice_is_served_once_the_curriculum_is_off(queue: Clients) -> None:
    run = Taught(queue, RULES, PROMPTS)
    waiting = queue.client.zcard(queue.keys.candidates("a"))
    assert waiting > 0 and queue.audit().backlog >= waiting
    queue.overrule(replace(RULES, curriculum="off"))
    assert sorted(trained_order(run)) == list(range(PROMPTS))
    assert queue.client.zcard(queue.keys.candidates("a")) == 0


def test_rewards_that_redis_has_lost_cost_nothing_but_the_order(queue: Clients) -> None:
    run = Taught(queue, RULES, PROMPTS)
    run.train()
    assert queue.client.delete(queue.keys.successes("a"))
    trained_order(run)
    assert queue.audit().trained == PROMPTS


def test_without_a_curriculum_no_reward_is_noted(queue: Clients) -> None:
    run = Taught(queue, replace(RULES, curriculum="off"), PROMPTS)
    run.train()
    assert not queue.client.exists(queue.keys.successes("a"), queue.keys.candidates("a"))


def test_what_waits_for_a_choice_may_be_trained_already(queue: Clients) -> None:
    """Redis was set back: checkpoints hold a prompt that the cursor has passed, and one that it has not."""
    run = Taught(queue, RULES, prompts=20)
    passed = {int(one.split(b"/")[1]) for one in queue.client.zrange(queue.keys.candidates("a"), 0, -1)}
    leased = {task.index for task in run.lease(1000)}
    waiting, later = min(passed), min(set(range(20)) - passed - leased)
    run.commit([f"a/0/{waiting}", f"a/0/{later}"])
    run.expire()
    assert sorted([*trained_order(run), waiting, later]) == list(range(20))


def test_counts_fade_and_rewards_beyond_the_range_count_as_its_ends() -> None:
    assert UNSEEN.after(16, 0.25).counts == pytest.approx((4, 12), rel=0.03)
    assert UNSEEN.after(16, 0.25).after(16, 1.0).counts == pytest.approx((18, 6), rel=0.03)
    assert UNSEEN.after(4, -3.0) == UNSEEN.after(4, 0.0) == Seen(0, 32)
    assert UNSEEN.after(4, 0.0, failure=-1.0, success=1.0).counts == pytest.approx((2, 2), rel=0.05)
    assert UNSEEN.after(10**6, 1.0).successes <= 255


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (3, 1), (9, 27)])
def test_success_rates_are_drawn_from_their_posterior(alpha: int, beta: int) -> None:
    draw = curriculum.uniform("any")
    pairs = [(curriculum.gamma(alpha, draw), curriculum.gamma(beta, draw)) for _ in range(4000)]
    rates, total = [a / (a + b) for a, b in pairs], alpha + beta
    mean, variance = alpha / total, alpha * beta / total**2 / (total + 1)
    assert fmean(rates) == pytest.approx(mean, abs=4 * (variance / 4000) ** 0.5)
    assert fmean((rate - mean) ** 2 for rate in rates) == pytest.approx(variance, rel=0.1)


def test_dopr_tries_what_was_never_tried_before_it_repeats_anything() -> None:
    draw = curriculum.uniform("any")
    tried = [UNSEEN.after(16, share / 16) for share in range(17)]
    unseen = curriculum.score("dopr", UNSEEN, 100, draw)
    scores = [curriculum.score("dopr", seen, 100, draw) for seen in tried]
    assert unseen > max(scores) and max(scores) == scores[8]
