"""The progress of a task is stored for the worker that leases it next: continued if that is allowed, never trusted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.queue import Heartbeat, Outcome
from echo_queue.queue.payloads import mark_after, partials_folder
from echo_queue.queue.sent_progress import TAIL_MAX, Sending, SentProgress
from echo_queue.queue.types import Stored
from echo_queue.records import NOTHING, Observed, PartialGroup, PartialSample, Span, Task, Version
from echo_queue.records import partial_codec as codec
from echo_queue.records.group_codec import CodecError
from echo_queue.records.segments import cut
from echo_queue.records.validation import GroupLimits
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness

ROOMY = replace(RULES, s=2, max_attempts=9)
LIMITS = GroupLimits(samples=2, vocabulary=100, prompt_tokens=8, new_tokens=6, reward_min=0.0, reward_max=1.0)


def partial_of(
    task: Task, spans: Sequence[tuple[int, int]] = ((0, 0),), length: int = 4, lineage: int = 0
) -> PartialGroup:
    """Two samples: the first has `length` tokens, the second is not begun."""
    begun = PartialSample(
        np.arange(length, dtype=np.int32), np.full(length, -0.5, np.float32), tuple(Span(*span) for span in spans)
    )
    return PartialGroup(task.id, lineage, (begun, NOTHING))


def kept(queue: Clients) -> set[str]:
    return {task.decode() for task in queue.client.hkeys(queue.keys.partials)}


def content(partials: PartialGroup) -> bytes:
    return codec.encode(cut(partials))


def forge(queue: Clients, task: str, told: str, *elements: bytes) -> None:
    """Writes a partial rollout by hand, as a worker's user may. `told`: oldest, newest, lineage and tokens."""
    mark = ""
    for element in elements:
        kind, _, payload = element.partition(b" ")
        mark = mark_after(mark, kind.decode(), payload)
    queue.client.delete(queue.keys.segments(task))
    queue.client.rpush(queue.keys.segments(task), *elements)
    queue.client.hset(queue.keys.partials, task, f"{told} {mark} {len(elements)} {sum(map(len, elements))} 0")


def tokens_of(harness: QueueHarness) -> tuple[int, int]:
    """Continued and discarded."""
    return harness.count("tokens_continued"), harness.count("tokens_discarded")


def test_who_leases_a_task_next_continues_it_however_the_first_worker_left_it(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=2)
    expired, released = harness.lease(2, "w1")
    partials = partial_of(expired), partial_of(released, length=3)
    assert queue.progress("w1", partials) == []
    queue.release("w1", [released.id])
    queue.reclaim()
    harness.expire()
    answer = harness.leased(2, "w2")
    assert {task: content(one) for task, one in answer.partials.items()} == {one.task: content(one) for one in partials}
    assert [task.attempt for task in answer.tasks] == [0, 0], "neither cost an attempt"
    assert tokens_of(harness) == (7, 0)


def test_what_is_kept_takes_the_place_of_what_was(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    for length in (1, 2, 3):
        assert queue.progress("w1", [partial_of(task, length=length)]) == []
    harness.expire()
    assert len(harness.leased(1, "w2").partials[task.id].samples[0].tokens) == 3


def test_a_partial_outlives_a_second_worker_that_dies_before_it_tells_anything(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task)])
    for worker in ("w2", "w3"):
        harness.expire()
        assert set(harness.leased(1, worker).partials) == {task.id}


def test_a_task_that_gets_on_never_dies_however_many_workers_are_taken_away(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(ROOMY, max_attempts=2), prompts=1)
    for length in range(1, 7):
        (task,) = harness.lease(1, f"w{length}")
        assert task.attempt == 0
        queue.progress(f"w{length}", [partial_of(task, length=length)])
        harness.expire()
    assert harness.lease(1)[0].attempt == 0


@pytest.mark.parametrize("length", [0, 2, 3], ids=["nothing", "less", "as much"])
def test_a_lease_that_runs_out_with_no_more_kept_than_the_one_before_costs_an_attempt(
    queue: Clients, length: int
) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    for worker, kept_so_far, attempt in (("w1", 3, 0), ("w2", length, 0), ("w3", length + 1, 1)):
        (task,) = harness.lease(1, worker)
        assert task.attempt == attempt
        queue.progress(worker, [partial_of(task, length=kept_so_far) if kept_so_far else _begun_by_nobody(task)])
        harness.expire()
    assert harness.lease(1)[0].attempt == 1, "what counts is what was kept at the last one"


def _begun_by_nobody(task: Task) -> PartialGroup:
    return PartialGroup(task.id, 0, (NOTHING, NOTHING))


def test_a_failure_costs_an_attempt_whatever_is_told_after_it(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    assert queue.fail("w1", task.id, "the reward function raised")
    queue.progress("w1", [partial_of(task)])
    assert queue.reclaim().failed == 1
    assert harness.lease(1)[0].attempt == 1


def test_a_revived_task_gets_on_from_nothing(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(ROOMY, max_attempts=1), prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task, length=5)])
    for _ in range(2):
        harness.expire()
        harness.lease(1)
    assert queue.revive([task.id]) == 1
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task, length=1)])
    harness.expire()
    assert harness.lease(1)[0].attempt == 0


def test_a_worker_that_claims_ever_more_keeps_no_task_alive_beyond_what_a_group_may_have(queue: Clients) -> None:
    most = 5
    harness = QueueHarness(queue, replace(ROOMY, group_max_tokens=most, max_attempts=2), prompts=1)
    (task,) = harness.lease(1, "liar")
    ended = 0
    while not queue.dead():
        ended += 1
        assert ended <= most + 2
        forge(queue, task.id, f"0 0 0 {ended}", b"segment x")
        harness.expire()
        queue.caller.call("lease", "liar", 0, 0, 1, f"token {ended}")
    assert ended == most + 2


def test_a_worker_that_lost_its_lease_keeps_nothing_and_is_told(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=2)
    lost, held = harness.lease(2, "w1")
    harness.expire()
    assert harness.lease(2, "w2")[0].id == lost.id
    queue.progress("w2", [partial_of(lost, length=2)])
    assert queue.progress("w1", [partial_of(lost, length=5), partial_of(held, length=5)]) == [lost.id, held.id]
    harness.expire()
    (partial_sample,) = harness.leased(2, "w3").partials.values()
    assert (partial_sample.task, len(partial_sample.samples[0].tokens)) == (lost.id, 2)


def test_a_task_that_nobody_has_begun_has_no_partial(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task)])
    assert queue.progress("w1", [PartialGroup(task.id, 0, (NOTHING, NOTHING))]) == []
    assert kept(queue) == set()


def test_a_partial_within_the_bound_is_continued_by_no_older_weights_than_it_has(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    for version in (1, 2):
        harness.advance(0)
        harness.publish(version)
    queue.renew("w1", {task.id: 0})
    queue.progress("w1", [partial_of(task, ((0, 0), (2, 2)))])
    harness.expire()
    answer = harness.leased(1, "w2", Version(0, 1))
    assert set(answer.partials) == {task.id}
    assert answer.tasks[0].min_pv == 2
    # the bound counts its oldest token: the next update leaves it behind
    assert queue.client.zscore(queue.keys.in_flight, task.id) == 0
    assert harness.advance(0) == 1


def test_a_partial_older_than_the_bound_is_dropped_and_counted(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task)])
    for version in (1, 2):
        harness.advance(0)
        harness.publish(version)
    answer = harness.leased(1, "w2")
    assert (answer.tasks[0].id, dict(answer.partials), kept(queue)) == (task.id, {}, set())
    assert tokens_of(harness) == (0, 4)


def test_a_partial_by_abandoned_weights_is_dropped(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(ROOMY, s=9), prompts=2)
    first, second = harness.lease(2)
    harness.advance(0)
    harness.publish(1)
    queue.progress("w1", [partial_of(first, ((0, 0), (1, 1))), partial_of(second)])
    queue.resume(Version(0, 0))
    harness.version = Version(1, 0)
    harness.publish(0)
    harness.advance(0)
    harness.publish(1)
    harness.expire()
    answer = harness.leased(2, "w2")
    assert (len(answer.tasks), set(answer.partials)) == (2, {second.id})


def test_completion_burial_failure_and_training_end_a_partial(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=4)
    done, buried, failed, trained = tasks = harness.lease(4)
    queue.progress("w1", [partial_of(task) for task in tasks])
    assert len(kept(queue)) == 4
    assert harness.complete((done,)) == [Outcome.accepted]
    assert queue.bury(buried.id, "by hand")
    assert queue.fail("w1", failed.id, "the reward function raised")
    assert harness.commit([trained.id]) == 1
    assert kept(queue) == set()


def test_a_task_that_was_given_up_starts_anew_once_it_is_revived(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(ROOMY, max_attempts=1), prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task)])
    harness.expire()
    assert set(harness.leased(1, "w2").partials) == {task.id}
    harness.expire()
    assert queue.revive([task.id]) == 1
    assert harness.leased(1, "w3").partials == {}


def test_the_repetition_of_a_lease_whose_reply_was_lost_has_the_partials_again(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task)])
    harness.expire()
    words = "lease", 1, queue.keys.prefix, "w2", 0, 0, 1, "token"
    first, again = (queue.client.fcall(f"eq1_{words[0]}", *words[1:]) for _ in range(2))
    assert first == again
    assert first[-1][0][-1][-1] == [b"segment " + content(partial_of(task))]  # type: ignore[index]


# What a worker may have written ---------------------------------------------------------------------------------------


def observing(task: Task) -> PartialGroup:
    """The environment acts as one that answers."""
    partial_sample = partial_of(task).samples[0]
    silent = replace(partial_sample, logprobs=np.zeros(4, np.float32), observed=(Observed(1, 2),))
    return PartialGroup(task.id, 0, (silent, NOTHING))


BAD: list[tuple[str, str, Any]] = [
    ("no partial rollout at all", "0 0 0 4", lambda task: [b"segment noise"]),
    ("no front", "noise", lambda task: [b"segment x"]),
    ("of no kind", "0 0 0 4", lambda task: [b"noise"]),
    ("numbers that no counter holds", "0 0 0 99999999999999999999", lambda task: [b"segment x"]),
    ("another task's", "0 0 0 4", lambda task: [segment(replace(partial_of(task), task="a/0/9"))]),
    ("newer than it says", "0 0 0 4", lambda task: [segment(partial_of(task, ((0, 5),)))]),
    ("of another lineage than it says", "0 0 0 4", lambda task: [segment(partial_of(task, lineage=7))]),
    ("of more tokens than it says", "0 0 0 3", lambda task: [segment(partial_of(task))]),
    ("somewhere else", "0 0 0 4", lambda task: [b"ref checkpoints/x " + b"0" * 64]),
    ("nowhere", "0 0 0 4", lambda task: [f"ref {partials_folder(task.id)}{'0' * 40} {'0' * 64}".encode()]),
    ("too long for the configuration", "0 0 0 7", lambda task: [segment(partial_of(task, length=7))]),
    ("an answer of the environment", "0 0 0 4", lambda task: [segment(observing(task))]),
    ("at its end already", "0 0 0 6", lambda task: [segment(partial_of(task, length=6))]),
    ("with a segment twice", "0 0 0 8", lambda task: [segment(partial_of(task))] * 2),
    ("with a gap", "0 0 0 4", lambda task: [segment(partial_of(task, length=2)), segment(partial_of(task), 3, 0)]),
]


def segment(partials: PartialGroup, *begins: int) -> bytes:
    return b"segment " + codec.encode(cut(partials, begins))


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_malformed_partial_is_dropped_and_counted_and_its_task_starts_anew(
    queue: Clients, object_store: ObjectStore, number: int
) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    harness.expire()
    what, told, elements = BAD[number]
    forge(queue, task.id, told, *elements(task))
    reader = Clients(queue.client, queue.run, object_store, deadline_s=10.0, limits=LIMITS)
    answer = reader.lease("w2", harness.version, 1)
    assert ([one.id for one in answer.tasks], answer.partials) == ([task.id], {}), what
    assert (kept(queue), harness.count("bad_partial")) == (set(), 1), what


def test_segments_in_place_of_others_are_no_partial(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task)])
    harness.expire()
    other = partial_of(task)
    other.samples[0].tokens[0] = 9
    queue.client.lset(queue.keys.segments(task.id), 0, segment(other))
    assert harness.leased(1, "w2").partials == {}
    assert harness.count("bad_partial") == 1


def test_a_worker_spoils_no_partial_but_that_of_a_task_it_holds(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=2)
    mine, _ = harness.lease(1, "w1")[0], harness.lease(1, "w2")
    queue.progress("w1", [partial_of(mine)])
    assert queue.discard("w2", [mine.id]) == 0
    assert kept(queue) == {mine.id}


MARK = "0" * 32
REFUSED: list[tuple[Any, ...]] = [
    ("x", 0, 0, 4, MARK, "", 0, "segment", "x"),
    (0, 0, 0, "1e9", MARK, "", 0, "segment", "x"),
    (0, 0, 0, 4, "mark", "", 0, "segment", "x"),
    (0, 0, 0, 4, MARK, "", "-1", "segment", "x"),
    (0, 0, 0, 4, MARK, "", 0, "group", "x"),
    (0, 0, 0, 4, MARK, "", 0, "ref", "weights/0001/x"),
    (0, 0, 0, 4, MARK, "", 0, "ref", f"{partials_folder('a/0/39')}{'0' * 40} {'0' * 64}"),
    (0, 0, 0, 4, MARK, "", 0, "segment", "x" * 5000),
]


@pytest.mark.parametrize("words", REFUSED)
def test_words_of_another_form_are_refused(queue: Clients, words: tuple[Any, ...]) -> None:
    harness = QueueHarness(queue, replace(ROOMY, group_max_bytes=4096), prompts=1)
    (task,) = harness.lease(1)
    with pytest.raises(ServiceError, match="this worker is broken, or of another release"):
        queue.caller.call("progress", "w1", task.id, *words)
    assert kept(queue) == set()


def test_a_partial_over_the_size_cap_is_an_error_at_its_worker(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    small = Clients(queue.client, queue.run, group_max_bytes=100)
    with pytest.raises(CodecError, match=r"queue.group_max_bytes is 100"):
        small.progress("w1", [partial_of(task, length=20)])


# What is sent ---------------------------------------------------------------------------------------------------------


def sent(queue: Clients) -> int:
    """Bytes that the server has received."""
    return int(queue.client.info("stats")["total_net_input_bytes"])


def elements(queue: Clients, task: Task) -> list[bytes]:
    return list(queue.client.lrange(queue.keys.segments(task.id), 0, -1))


def test_only_what_is_new_is_sent_and_the_next_worker_has_all_of_it(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task, length=20_000)])
    before = sent(queue)
    for length in (20_010, 20_020, 20_020):
        assert queue.progress("w1", [partial_of(task, length=length)]) == []
    assert sent(queue) - before < 2_000
    assert len(elements(queue, task)) == 3, "nothing is sent where nothing is new"
    harness.expire()
    found = harness.leased(1, "w2").partials[task.id]
    assert content(found) == content(partial_of(task, length=20_020))
    queue.progress("w2", [partial_of(task, length=20_030)])
    assert len(elements(queue, task)) == 4, "who leases it next goes on where it was left"


def test_a_worker_that_begins_anew_replaces_what_it_sent(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    queue.progress("w1", [partial_of(task, length=5)])
    other = partial_of(task, length=6)
    other.samples[0].tokens[0] = 9
    assert queue.progress("w1", [other]) == []
    harness.expire()
    assert content(harness.leased(1, "w2").partials[task.id]) == content(other)


def test_a_call_whose_reply_was_lost_appends_nothing_twice(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    table = SentProgress(None)

    def sending(length: int) -> Sending:
        step = table.news("w1", partial_of(task, length=length))
        assert step
        return step.stored_as(*queue.payloads.keep_segment(step.segment))

    first = sending(2)
    table.note("w1", first.sent)
    second = sending(3)
    for sending in (first, second):
        for _ in range(3):
            assert queue.caller.call("progress", "w1", *sending.words) == [Stored.taken]
    assert len(elements(queue, task)) == 2
    assert queue.caller.call("progress", "w1", *second.words[:6], "another", *second.words[7:]) == [Stored.taken]


def test_a_gap_makes_the_worker_send_everything(queue: Clients) -> None:
    """Redis forgot the segments, or another worker that held the task meanwhile has stored others."""
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    for spoil in (
        lambda: queue.client.hdel(queue.keys.partials, task.id),
        lambda: queue.client.delete(queue.keys.segments(task.id)),
        lambda: queue.client.rpush(queue.keys.segments(task.id), "noise"),
        lambda: forge(queue, task.id, "0 0 0 4", b"segment noise"),
    ):
        length = 2 + 2 * len(kept(queue))
        queue.progress("w1", [partial_of(task, length=length)])
        spoil()
        assert queue.progress("w1", [partial_of(task, length=length + 1)]) == []
        assert elements(queue, task) == [segment(partial_of(task, length=length + 1))]


def test_many_segments_become_one(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    most = 0
    for length in range(1, 200):
        queue.progress("w1", [partial_of(task, length=length)])
        most = max(most, len(elements(queue, task)))
    assert most <= TAIL_MAX + 3
    harness.expire()
    assert content(harness.leased(1, "w2").partials[task.id]) == content(partial_of(task, length=199))


def test_a_worker_remembers_what_it_sent_only_of_tasks_that_it_holds(queue: Clients) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=2)
    ended, held = harness.lease(2)
    queue.progress("w1", [partial_of(ended), partial_of(held)])
    queue.renew("w1", {held.id: 0})
    queue.progress("w1", [partial_of(ended, length=5), partial_of(held, length=5)])
    assert [len(elements(queue, task)) for task in (ended, held)] == [1, 2]


# Large ones -----------------------------------------------------------------------------------------------------------


def stored(store: ObjectStore) -> list[str]:
    return [found.key for found in store.list("partials/")]


def test_a_large_partial_travels_through_the_store_and_its_objects_end_with_it(
    spilling: Clients, object_store: ObjectStore
) -> None:
    harness = QueueHarness(spilling, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    for length in (2, 3, 4):
        spilling.progress("w1", [partial_of(task, length=length)])
    assert len(stored(object_store)) == 3
    harness.expire()
    answer = harness.leased(1, "w2")
    assert content(answer.partials[task.id]) == content(partial_of(task))
    harness.complete(answer.tasks, "w2")
    unwanted = spilling.unwanted()
    assert sorted(unwanted) == stored(object_store)
    assert spilling.unwanted(removed=unwanted) == []


def test_small_segments_wait_in_redis_until_they_are_large_together(queue: Clients, object_store: ObjectStore) -> None:
    harness = QueueHarness(queue, ROOMY, prompts=1)
    worker = Clients(queue.client, queue.run, object_store, inline_max_bytes=1000)
    (task,) = worker.lease("w1", harness.version, 1).tasks
    for length in range(10, 400, 10):
        worker.progress("w1", [partial_of(task, length=length)])
    kinds = [element.partition(b" ")[0] for element in elements(queue, task)]
    assert kinds == sorted(kinds) and kinds.count(b"ref") == len(stored(object_store)) > 1, "objects first"
    assert worker.unwanted() == []
    harness.expire()
    assert content(worker.lease("w2", harness.version, 1).partials[task.id]) == content(partial_of(task, length=390))


def test_a_partial_stored_after_the_lease_was_lost_spoils_nothing(spilling: Clients, object_store: ObjectStore) -> None:
    harness = QueueHarness(spilling, ROOMY, prompts=1)
    (task,) = harness.lease(1)
    spilling.progress("w1", [partial_of(task, length=2)])
    harness.expire()
    harness.lease(1, "w2")
    spilling.progress("w2", [partial_of(task, length=3)])
    assert spilling.progress("w1", [partial_of(task, length=4)]) == [task.id]
    harness.expire()
    (partial_sample,) = harness.leased(1, "w3").partials.values()
    assert len(partial_sample.samples[0].tokens) == 3
    assert len(spilling.unwanted()) == 1, "the object that nobody knows of"


# Leaving --------------------------------------------------------------------------------------------------------------


def test_a_worker_that_leaves_is_no_longer_listed(queue: Clients) -> None:
    QueueHarness(queue)
    for worker in ("w1", "w2"):
        queue.heartbeat(worker, Heartbeat("engine", Version(0, 0), "idle"))
    for _ in range(2):
        queue.leave("w1")
    assert [worker.name for worker in queue.status().workers] == ["w2"]
    assert not queue.client.exists(queue.keys.worker("w1"))


def test_what_a_worker_holds_when_it_leaves_is_still_its_own(queue: Clients) -> None:
    harness = QueueHarness(queue)
    tasks = harness.lease(1, "w1")
    queue.leave("w1")
    harness.check()
    assert harness.complete(tasks, "w1") == [Outcome.accepted]
