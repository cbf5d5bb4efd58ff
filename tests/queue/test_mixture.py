"""What is admitted keeps to the weights of the mixture's components, whatever comes and goes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo_queue.errors import PromptError
from echo_queue.queue import Chunk, Order, PromptSet
from echo_queue.queue.run_rules import RunRules
from echo_queue.records import PromptShard, Task, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness

RULES = RunRules(s=0, batch=10, pace=False, longest_first=False, mixture="a:6 b:3 c:1")
MOST_OFF = 2.0
"""The most prompts by which any stretch of admissions is off a component's share."""


class Mixed(QueueHarness):
    """A run of several components, of which no set is there yet."""

    def __init__(self, queue: Clients, rules: RunRules = RULES) -> None:
        super().__init__(queue, rules, prompts=0)

    def declare(self, name: str, prompts: int, order: Order = "sequential", chunks: int = 1) -> None:
        size = prompts // chunks
        self.queue.declare(
            PromptSet(name, f"source of {name}", order=order), [Chunk(at, at * size, size) for at in range(chunks)]
        )

    def arrive(self, name: str, prompts: int, chunk: int = 0) -> None:
        """Submits a chunk of that many prompts."""
        self.queue.submit(name, chunk, PromptShard(f"shards/{name}/{chunk}", chunk * prompts, prompts))
        self.check()

    def fill(self, order: Order = "sequential", **prompts: int) -> None:
        """Declares these sets, and then submits them."""
        for name, count in prompts.items():
            self.declare(name, count, order)
        for name, count in prompts.items():
            self.arrive(name, count)

    def served(self) -> list[str]:
        """Trains all that is admitted; returns the components of it in the order of admission."""
        tasks = tuple(sorted(self.lease(1000), key=_admitted))
        self.complete(tasks)
        self.update(len(tasks))
        return [task.set.partition(".")[0] for task in tasks]

    def train(self, updates: int) -> list[str]:
        return [name for _ in range(updates) for name in self.served()]

    def start_again(self, rules: RunRules) -> None:
        """Another learner begins where this one is."""
        lineage = self.queue.resume(self.version, rules=rules).lineage
        self.rules, self.version = rules, Version(lineage, self.version.number)
        self.publish(self.version.number)

    def undo(self, commits: Sequence[Sequence[str]]) -> None:
        """Takes back the last commits, of these ids, the newest one last."""
        for ids in reversed(commits):
            name, parent = f"checkpoint-{self.checkpoints}", f"checkpoint-{self.checkpoints - 1}"
            self.queue.uncommit(self.version.lineage, name, parent, ids)
            self.checkpoints -= 1


def _admitted(task: Task) -> tuple[int, int]:
    ms, number = task.entry.split("-")
    return int(ms), int(number)


def most_off(served: Sequence[str], weights: dict[str, float]) -> float:
    """Returns by how many prompts a stretch of these admissions is off a share at most."""
    total, worst = sum(weights.values()), 0.0
    for name, weight in weights.items():
        ahead = lowest = highest = 0.0
        for one in served:
            ahead += (one == name) - weight / total
            lowest, highest = min(lowest, ahead), max(highest, ahead)
        worst = max(worst, highest - lowest)
    return worst


def weights_of(rules: RunRules) -> dict[str, float]:
    return {name: float(weight) for name, _, weight in (one.partition(":") for one in rules.mixture.split())}


def test_every_stretch_of_admissions_has_each_components_share(queue: Clients) -> None:
    run = Mixed(queue)
    run.fill(a=100, b=60, c=40)
    served = run.train(10)
    assert Counter(served) == {"a": 60, "b": 30, "c": 10}
    assert most_off(served, weights_of(RULES)) < MOST_OFF
    assert served[:10] == [*"abacabaaba"]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_shares_hold_whatever_the_weights_the_bound_and_the_learners(queue: Clients, data: st.DataObject) -> None:
    queue.client.delete(*queue.client.keys(queue.keys.prefix + "*") or ["none"])
    queue = Clients(queue.client, queue.run)
    weights = data.draw(st.lists(st.sampled_from([1, 2, 3, 6, 0.1, 0.25, 20]), min_size=1, max_size=4), "weights")
    names = [*"abcd"][: len(weights)]
    words = " ".join(f"{name}:{weight:g}" for name, weight in zip(names, weights, strict=True))
    s, batch = data.draw(st.integers(0, 2), "s"), data.draw(st.integers(1, 9), "batch")
    order: Order = data.draw(st.sampled_from(["sequential", "shuffled"]), "order")
    curriculum = data.draw(st.sampled_from(["off", "mopps"]), "curriculum")
    rules = replace(RULES, s=s, batch=batch, mixture=words, curriculum=curriculum)
    run = Mixed(queue, rules)
    run.fill(order, **dict.fromkeys(names, 400))
    served = []
    for _ in range(data.draw(st.integers(1, 2), "learners")):
        served += run.train(4)
        run.start_again(rules)
    assert most_off(served, weights_of(rules)) < MOST_OFF
    admitted = Counter([*served, *(task.set for task in run.lease(1000))])
    assert {one.name: one.admitted for one in queue.status().components} == {name: admitted[name] for name in names}


def test_what_is_exhausted_leaves_its_share_to_the_others_and_its_next_set_joins(queue: Clients) -> None:
    run = Mixed(queue)
    run.fill(a=100, b=60, c=1)
    served = run.train(4)
    assert (len(served), served.count("c")) == (40, 1)
    assert most_off(served[10:], {"a": 6, "b": 3}) < MOST_OFF
    run.fill(**{"c.more": 40})
    run.train(1)  # these were admitted before
    assert most_off(run.train(4), weights_of(RULES)) < MOST_OFF


def test_a_component_of_which_nothing_was_declared_takes_no_part(queue: Clients) -> None:
    run = Mixed(queue)
    run.fill(a=40)
    assert run.train(4) == ["a"] * 40


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_a_component_on_its_way_is_waited_for(queue: Clients, order: Order) -> None:
    run = Mixed(queue)
    run.declare("b", 30, order)
    run.fill(a=60, c=10)
    assert run.served() == ["a"]
    assert run.served() == []
    run.arrive("b", 30)
    assert most_off(["a", *run.train(4)], weights_of(RULES)) < MOST_OFF


def test_a_component_that_cannot_be_read_is_not_waited_for(queue: Clients) -> None:
    run = Mixed(queue)
    run.declare("b", 30, "shuffled", chunks=2)
    run.fill(a=60, c=10)
    run.arrive("b", 15)
    assert run.served() == ["a"]
    queue.reject("b", Chunk(1, 15, 15), "no such file")
    queue.admit()
    assert set(run.train(3)) == {"a", "c"}


def test_sets_of_a_component_are_served_by_priority_and_then_in_order(queue: Clients) -> None:
    run = Mixed(queue)
    run.fill(a=6, **{"a.2": 100}, b=60, c=40)
    sets = []
    for _ in range(3):
        tasks = sorted(run.lease(1000), key=_admitted)
        sets += [task.set for task in tasks if task.set.startswith("a")]
        run.complete(tuple(tasks))
        run.update(len(tasks))
    assert sets == ["a"] * 6 + ["a.2"] * 12


def test_what_is_trained_anew_counts_as_its_components_share(queue: Clients) -> None:
    run = Mixed(queue)
    run.fill(a=100, b=60, c=40)
    tasks = run.lease(1000)
    of_a = [task.id for task in tasks if task.set == "a"]
    run.complete(tasks)
    run.drain(10)
    run.advance(10)
    run.commit([task.id for task in tasks if task.set != "a"])
    run.commit(of_a)
    run.undo([of_a])
    run.publish(1)
    assert Counter(run.served()) == {"a": 6, "b": 3, "c": 1}
    assert most_off(run.train(3), weights_of(RULES)) < MOST_OFF


def test_a_component_of_which_much_is_trained_anew_is_left_out_for_two_batches_at_most(queue: Clients) -> None:
    run = Mixed(queue, replace(RULES, mixture="a:1 b:1"))
    run.fill(a=100)
    commits = []
    for _ in range(5):
        tasks = run.lease(1000)
        run.complete(tasks)
        commits.append([group.task for group in run.update().groups])
    queue.fail("w1", run.lease(1)[0].id, "away")
    run.declare("b", 100)
    run.arrive("b", 100)
    run.undo(commits)
    served = run.train(10)
    assert served[:10] == ["a"] * 10 and served.count("a") > 50
    assert most_off(served[80:], {"a": 1, "b": 1}) < MOST_OFF


def test_prompts_that_checkpoints_hold_are_passed_and_no_component_is_charged_for_them(queue: Clients) -> None:
    """Redis was lost, and the checkpoints hold the first 90 prompts of one component."""
    run = Mixed(queue)
    assert queue.restore(0, "checkpoint", [f"a/0/{index}" for index in range(90)])
    run.fill(a=150, b=60, c=40)
    assert most_off(run.train(5), weights_of(RULES)) < MOST_OFF


def test_other_weights_hold_from_the_next_admission_on(queue: Clients) -> None:
    run = Mixed(queue)
    run.fill(a=100, b=100, c=100)
    run.train(2)
    run.start_again(replace(RULES, mixture="c:0.8 a:0.1 b:0.1 d:9"))
    run.train(1)
    served = run.train(3)
    assert most_off(served, {"a": 0.1, "b": 0.1, "c": 0.8}) < MOST_OFF
    run.start_again(replace(RULES, mixture=""))
    run.train(1)
    assert set(run.train(2)) == {"a"}


def test_a_set_of_no_component_is_refused(queue: Clients) -> None:
    Mixed(queue)
    for name in ("ab", "d.a", "prompts"):
        with pytest.raises(PromptError, match=f"the mixture has no component {name.partition('.')[0]}, only a, b, c"):
            queue.declare(PromptSet(name, "source"), [Chunk(0, 0, 1)])
    queue.declare(PromptSet("held", "source", order="held_out"), [Chunk(0, 0, 1)])
    queue.declare(PromptSet("c.a.b", "source"), [Chunk(0, 0, 1)])


def test_a_finished_run_takes_sets_of_components_that_its_next_learner_brings(queue: Clients) -> None:
    run = Mixed(queue)
    assert queue.finish(0)
    run.fill(d=20, **{"e.1": 20})
    with pytest.raises(PromptError, match="d: this run has prompts of it"):
        run.start_again(RULES)
    run.start_again(replace(RULES, mixture="e:1 d:1"))
    assert Counter(run.train(2)) == {"d": 10, "e": 10}
    with pytest.raises(PromptError, match="the mixture has no component f"):
        run.declare("f", 20)


def test_a_component_that_has_prompts_stays_in_the_mixture(queue: Clients) -> None:
    run = Mixed(queue)
    run.fill(a=20, **{"b.1": 20})
    queue.declare(PromptSet("held", "source", order="held_out"), [Chunk(0, 0, 1)])
    before = queue.status()
    with pytest.raises(PromptError, match=r"b\.1: this run has prompts of it, and the mixture"):
        queue.resume(rules=replace(RULES, mixture="a:1"))
    with pytest.raises(PromptError, match=r"d\.2: this run has prompts of it"):
        queue.resume(rules=RULES, sets={"a": queue.set_digests(0, ["a"])["a"], "d.2": "digest"})
    assert queue.status().rules == before.rules and queue.status().learner == before.learner
    queue.resume(rules=replace(RULES, mixture="b:1 a:1"))
    queue.resume(rules=replace(RULES, mixture=""))


def test_a_run_without_a_mixture_keeps_no_shares(queue: Clients) -> None:
    run = Mixed(queue, replace(RULES, mixture=""))
    run.fill(a=20, b=20)
    assert run.train(2) == ["a"] * 20
    assert not queue.client.exists(queue.keys.mixture) and queue.status().components == ()


def test_the_status_tells_of_each_component(queue: Clients) -> None:
    run = Mixed(queue)
    run.declare("a", 30, chunks=3)
    run.declare("a.more", 50)
    run.declare("b", 20)
    run.arrive("a", 10)
    run.arrive("b", 20)
    found = queue.status().components
    assert [(one.name, one.weight, one.admitted, one.backlog, one.missing) for one in found] == [
        ("a", 6.0, 7, 3, 70), ("b", 3.0, 3, 17, 0), ("c", 1.0, 0, 0, 0),
    ]  # fmt: skip
