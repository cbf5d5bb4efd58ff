"""Prompts leave the backlog when bound and pace allow, in the promised order."""

import itertools
from dataclasses import replace

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo_queue.errors import PromptError
from echo_queue.queue import Chunk, Order, PromptSet, RunRules, staleness_rules
from echo_queue.queue.staleness_rules import within_bound, within_window
from echo_queue.records import PromptShard, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness


def test_nothing_is_admitted_before_weights_are_published(queue: Clients) -> None:
    queue.configure(RULES)
    queue.declare(PromptSet("a", "source"), [Chunk(0, 0, 10)])
    queue.submit("a", 0, PromptShard("shard", 0, 10))
    assert queue.admit() == 0
    assert queue.lease("w1", Version(0, 0), 1).tasks == ()


def test_with_s_0_exactly_one_batch_is_admitted_for_each_update(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=0, batch=3, pace=False), prompts=12)
    for version in range(4):
        tasks = harness.lease(1000)
        assert len(tasks) == 3
        assert {task.min_pv for task in tasks} == {version}
        harness.complete(tasks)
        assert queue.admit() == 0
        assert [group.oldest for group in harness.update().groups] == [version] * 3
    assert queue.audit().trained == 12


def test_with_s_0_nothing_is_admitted_between_an_update_and_its_publication(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=0, batch=2, pace=False))
    harness.complete(harness.lease(2))
    harness.update(publish=False)
    assert harness.lease(2) == ()
    harness.publish(1)
    assert len(harness.lease(9)) == 2


def test_the_window_paces_admission_within_the_bound(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=8, batch=4, pace=True), prompts=100)
    assert queue.status().tasks == 8  # two batches until the learner says otherwise
    harness.complete(harness.lease(4))
    groups = harness.drain(4).groups
    queue.advance(0, 1, 4, 2.5)
    # trained but uncommitted groups no longer count: 4 left, 10 allowed
    assert queue.status().tasks == 10
    harness.commit([group.task for group in groups])
    assert queue.admit() == 0


def test_what_a_stream_took_before_it_takes_no_more_has_a_place(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=0, batch=4, pace=False), prompts=12)
    harness.complete(harness.lease(4))
    harness.update(publish=False)
    queue.client.xadd(queue.keys.tasks, {"id": "x"}, id=f"{2**64 - 1}-{2**64 - 3}")
    queue.client.xtrim(queue.keys.tasks, maxlen=0)
    with pytest.raises(redis.ResponseError, match="EQMEND"):
        queue.client.fcall("eq1_publish", 1, queue.keys.prefix, harness.version.lineage, 1, "manifest", "digest")
    assert (queue.status().tasks, queue.audit().misplaced) == (2, 0)


def test_a_window_of_any_size_keeps_all_its_tasks(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=1000, batch=10, pace=False), prompts=2500)
    while queue.admit():
        pass
    harness.check()
    assert queue.status().tasks == len(harness.lease(3000)) == 2500


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_server_admits_what_the_pure_rule_admits(queue: Clients, data: st.DataObject) -> None:
    queue.client.delete(*queue.client.keys(queue.keys.prefix + "*") or ["none"])
    queue = Clients(queue.client, queue.run)
    s, batch = data.draw(st.integers(0, 4), "s"), data.draw(st.integers(1, 4), "batch")
    pace, window = data.draw(st.booleans(), "pace"), data.draw(st.floats(1, 6), "window")
    harness = QueueHarness(queue, RunRules(s=s, batch=batch, pace=pace), prompts=0)
    v = data.draw(st.integers(1, 6), "v")
    queue.advance(0, v, 0, window)
    published = data.draw(st.integers(0, v), "published")
    if published:
        harness.publish(published)
    harness.submit("a", 60)
    tagged, expected = [task.min_pv for task in harness.lease(1000, version=Version(0, 0))], []
    for untrained in range(60):
        oldest = staleness_rules.min_pv(v, untrained, batch, s)
        paced = within_window(untrained, batch, window) if pace else True
        if not (within_bound(oldest, published) and paced):
            break
        expected.append(oldest)
    assert tagged == expected


def test_a_submission_repeated_adds_nothing(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=10)
    harness.submit("a", 10)
    assert queue.audit().submitted == 10


def test_a_set_declared_differently_is_refused(queue: Clients) -> None:
    QueueHarness(queue, prompts=10)
    with pytest.raises(PromptError, match="it holds other prompts, of source of a"):
        queue.declare(PromptSet("a", "another"), [Chunk(0, 0, 10, digest="other")])
    with pytest.raises(PromptError, match="epochs is 1, not 2"):
        queue.declare(PromptSet("a", "source of a", epochs=2), [Chunk(0, 0, 10)])
    with pytest.raises(PromptError, match="chunk 0 is 0 \\+ 10, not 0 \\+ 11"):
        queue.submit("a", 0, PromptShard("shard", 0, 11))
    with pytest.raises(PromptError, match="chunk 7 was never declared"):
        queue.submit("a", 7, PromptShard("shard", 0, 10))


def test_the_ledger_names_the_chunks_that_are_missing(queue: Clients) -> None:
    queue.configure(RULES)
    chunks = [Chunk(0, 0, 4), Chunk(1, 4, 4), Chunk(2, 8, 2)]
    assert queue.submission_status("a") is None
    queue.declare(PromptSet("a", "source"), chunks)
    queue.submit("a", 1, PromptShard("shard", 4, 4))
    submission_status = queue.submission_status("a")
    assert submission_status is not None
    assert (submission_status.prompts, submission_status.waiting, submission_status.complete) == (
        10,
        (chunks[0], chunks[2]),
        False,
    )


def test_sequential_serves_shards_as_they_arrive_and_epochs_one_after_another(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=50, batch=1, pace=False), prompts=0)
    queue.declare(PromptSet("a", "source", epochs=2), [Chunk(0, 0, 2), Chunk(1, 2, 3)])
    queue.submit("a", 1, PromptShard("second", 2, 3))
    assert [(task.epoch, task.index, task.shard.object) for task in harness.lease(99)] == [
        (0, 2, "second"), (0, 3, "second"), (0, 4, "second"),
    ]  # fmt: skip
    queue.submit("a", 0, PromptShard("first", 0, 2))
    harness.check()
    served = [(task.epoch, task.index) for task in harness.lease(99)]
    assert served == [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (1, 0), (1, 1)]


def test_a_shuffled_epoch_is_a_permutation_and_each_epoch_another(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=500, batch=1, pace=False), prompts=0)
    harness.submit("a", 101, chunk=10, order="shuffled", epochs=2, seed=5)
    tasks = harness.lease(1000)
    first, second = tasks[:101], tasks[101:]
    for epoch, part in enumerate((first, second)):
        assert {task.epoch for task in part} == {epoch}
        assert sorted(task.index for task in part) == list(range(101))
        assert all(task.shard.first <= task.index < task.shard.first + task.shard.count for task in part)
    orders = [[task.index for task in part] for part in (first, second)]
    assert orders[0] != orders[1]
    # no trace of the given order: neighbours are as far apart as chance has it (a third of the set)
    for order in orders:
        jumps = [abs(one - other) for one, other in itertools.pairwise(order)]
        assert 20 < sum(jumps) / len(jumps) < 50


def test_a_shuffled_set_waits_for_all_its_chunks(queue: Clients) -> None:
    QueueHarness(queue, prompts=0)
    queue.declare(PromptSet("a", "source", order="shuffled"), [Chunk(0, 0, 2), Chunk(1, 2, 2)])
    queue.submit("a", 1, PromptShard("second", 2, 2))
    assert queue.status().tasks == 0
    queue.submit("a", 0, PromptShard("first", 0, 2))
    assert queue.status().tasks == 4


def test_higher_priority_is_served_first_then_older_sets(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=1, batch=2, pace=False), prompts=0)
    queue.overrule(replace(RULES, s=0))
    for name, priority in (("plain", 0), ("later", 0), ("urgent", 5)):
        harness.submit(name, 4, priority=priority)
    order = []
    for _ in range(6):
        order += sorted(group.set for group in harness.round().groups)
    # The first batch had been admitted before the others were submitted.
    assert order == ["plain"] * 2 + ["urgent"] * 4 + ["plain"] * 2 + ["later"] * 4


def test_admission_reads_as_much_for_a_hundred_million_prompts_as_for_a_thousand(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, s=3), prompts=0)
    for name, prompts in (("small", 1000), ("huge", 100_000_000)):
        harness.submit(name, prompts, chunk=prompts // 10, order="shuffled", epochs=3)
    entries = sum(queue.client.zcard(queue.keys.shards(name)) for name in ("small", "huge"))
    assert entries == 20
    assert queue.audit().submitted == 3 * 100_001_000
    assert queue.status().tasks == 8


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_what_is_trained_already_is_passed_at_once_and_each_call_has_its_limit(queue: Clients, order: Order) -> None:
    """Redis was lost, and the checkpoints hold all prompts of two epochs but the last one of each."""
    prompts, most = 3_500, 2_000
    harness = QueueHarness(queue, RunRules(s=9, batch=1, pace=False), prompts=0)
    ids = [f"a/{epoch}/{index}" for epoch in range(2) for index in range(prompts - 1)]
    assert queue.restore(0, "checkpoint", ids)
    harness.submit("a", prompts, order=order, epochs=2)
    passed = queue.audit().trained
    assert 0 < passed <= most
    queue.client.fcall("eq1_admit", 1, queue.keys.prefix)
    assert passed < queue.audit().trained <= passed + most
    queue.admit()
    harness.check()
    assert queue.audit().trained == len(ids)
    assert {task.id for task in harness.lease(9)} == {f"a/{epoch}/{prompts - 1}" for epoch in range(2)}
    assert not queue.client.exists(queue.keys.settled)
