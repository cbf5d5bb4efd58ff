"""A worker that lies, is broken or means harm: what it sends is refused or buried with its name; the rest goes on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import redis

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import FencedError, ServiceError
from echo_queue.queue import Heartbeat, Outcome
from echo_queue.queue.payloads import folder, new_reference
from echo_queue.records import Group, Sample, Span, Task, Version
from echo_queue.records.group_codec import CodecError, encode
from echo_queue.records.validation import GroupLimits, GroupValidator
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of

CAP = 65_536
LIMITS = GroupLimits(samples=2, vocabulary=100, prompt_tokens=16, new_tokens=8, reward_min=0.0, reward_max=1.0)
Spoil = Callable[[Group], Group]


@pytest.fixture
def validator() -> GroupValidator:
    return GroupValidator(LIMITS, Version(0, 0), patience=3)


@pytest.fixture
def queue(redis_client: "redis.Redis", run_name: str, validator: GroupValidator) -> Clients:
    """The queue of a fresh run, whose learner vets."""
    return Clients(redis_client, run_name, deadline_s=10.0, validator=validator)


@pytest.fixture
def harness(queue: Clients) -> QueueHarness:
    """A learner of lineage 0 that has handed out version 0, and vets. One bad group kills a task."""
    return QueueHarness(queue, replace(RULES, s=5, group_max_bytes=CAP, max_attempts=1))


def first(group: Group, **changes: object) -> Group:
    """`group` with a changed first sample."""
    return replace(group, samples=(replace(group.samples[0], **changes), *group.samples[1:]))  # type: ignore[arg-type]


def tell(queue: Clients, task: str, payload: bytes, kind: str = "group", **said: Any) -> str:
    """`complete` as a worker could call it that has our user and not our code."""
    words = {"worker": "liar", "attempt": 0, "oldest": 0, "newest": 0, "lineage": 0}
    words |= {"samples": 2, "tokens": 6, "reward": "0.5000"} | said
    told = words.pop("worker"), task, *words.values()
    (answer,) = queue.client.fcall("eq1_complete", 1, queue.keys.prefix, *told, kind, payload)
    return answer.decode()


SPOILED: list[tuple[str, Spoil]] = [
    ("shape", lambda group: replace(group, samples=(*group.samples, group.samples[0]))),
    ("shape", lambda group: replace(group, prompt=np.zeros(17, np.int32))),
    ("tokens", lambda group: replace(group, prompt=np.array([100], np.int32))),
    ("tokens", lambda group: first(group, tokens=np.array([1, 2, 100], np.int32))),
    ("logprobs", lambda group: first(group, logprobs=np.array([-1, -1, 1], np.float32))),
    ("logprobs", lambda group: first(group, logprobs=np.array([-1, -1, -1e20], np.float32))),
    ("versions", lambda group: first(group, spans=(Span(0, 1),))),
    ("reward", lambda group: first(group, reward=1.5)),
    ("finish", lambda group: first(group, finish="abort")),
    ("finish", lambda group: first(group, finish="length")),
]


@pytest.mark.parametrize(("cause", "spoil"), SPOILED)
def test_a_bad_group_is_buried_with_its_reason_and_sender_and_the_next_goes_on(
    harness: QueueHarness, queue: Clients, cause: str, spoil: Spoil
) -> None:
    bad, good = harness.lease(2)
    assert queue.complete("rotten", [spoil(group_of(bad, "rotten", harness.version))]) == [Outcome.accepted]
    harness.complete((good,))
    drained = harness.drain(2)
    assert [group.task for group in drained.groups] == [good.id]
    assert (drained.malformed, harness.count(f"bad_{cause}"), harness.count("buried")) == (1, 1, 1)
    (dead,) = queue.dead()
    assert (dead.id, dead.worker) == (bad.id, "rotten") and dead.reason
    assert queue.revive([bad.id]) == 1
    harness.check()


def test_a_group_of_another_task_or_under_another_name_is_buried(harness: QueueHarness, queue: Clients) -> None:
    tasks = harness.lease(3)
    other = encode(group_of(tasks[2], "liar", harness.version))
    renamed = encode(group_of(tasks[1], "honest", harness.version))
    assert tell(queue, tasks[0].id, other) == tell(queue, tasks[1].id, renamed) == "accepted"
    assert harness.drain(2).malformed == 2
    reasons = {dead.id: dead.reason for dead in queue.dead()}
    assert f"its entry says id {tasks[0].id}" in reasons[tasks[0].id]
    assert "its entry says worker liar, its content does not: honest" in reasons[tasks[1].id]
    assert {dead.worker for dead in queue.dead()} == {"liar"}
    assert harness.count("bad_entry") == 2


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x80\x04K\x01.", b"\x01\xff\xff\xff\x7f{}", b"{" * 60_000])
def test_bytes_that_are_no_group_are_buried(harness: QueueHarness, queue: Clients, payload: bytes) -> None:
    (task,) = harness.lease(1)
    assert tell(queue, task.id, payload) == "accepted"
    assert harness.drain(1).malformed == 1
    assert harness.count("bad_bytes") == 1


def test_a_worker_that_sends_nothing_else_is_named(
    harness: QueueHarness, queue: Clients, validator: GroupValidator
) -> None:
    tasks = harness.lease(3)
    for task in tasks:
        assert validator.find_unworthy() == []
        tell(queue, task.id, b"nothing")
        harness.drain(1)
    (liar,) = validator.find_unworthy()
    assert (liar.name, liar.tasks) == ("liar", [task.id for task in tasks])
    assert "3 groups in a row could not be trained; the last: " in liar.reason


def test_a_bad_group_costs_its_prompt_an_attempt_and_no_life(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, s=5, group_max_bytes=CAP, max_attempts=2), prompts=1)
    (task,) = harness.lease(1)
    tell(queue, task.id, b"nothing")
    assert harness.drain(1).malformed == 1
    assert queue.failing() == [task.id]
    (again,) = harness.lease(1)
    assert (again.id, again.attempt) == (task.id, 1)
    harness.complete((again,))
    assert [group.task for group in harness.drain(1).groups] == [task.id]
    harness.check()


def test_a_suspended_worker_leases_and_completes_nothing_and_its_prompts_live(
    harness: QueueHarness, queue: Clients
) -> None:
    """Its bad groups had killed one, another one is on its last attempt, one is in its hands, one in another's."""
    tasks = harness.lease(3, "liar")
    for task in tasks[:2]:
        tell(queue, task.id, b"nothing")
        harness.drain(1)
    assert queue.audit().dead == 2
    assert queue.bury(tasks[2].id, "by hand")
    (held,) = harness.lease(1, "liar")
    (honest,) = harness.lease(1, "w1")
    ids = [task.id for task in (*tasks, honest)]
    for tried in range(2):
        assert queue.suspend(0, "liar", "they were bad", ids) == (0 if tried else 2)
    queue.reclaim()
    audit, status = queue.audit(), queue.status()
    assert (audit.ok, audit.dead, status.counts["released"]) == (True, 1, 1), "what a person buried stays dead"
    assert {one.name: one.suspended for one in status.workers}["liar"] == "they were bad"
    assert [
        words[b"what"].decode() for _, words in queue.client.xrange(queue.keys.events) if words[b"kind"] == b"suspended"
    ] == ["liar: they were bad"]
    lease = queue.lease("liar", harness.version, 9)
    assert (lease.tasks, lease.suspended) == ((), "they were bad")
    assert queue.client.zscore(queue.keys.idle, "liar") is None, "it is offered nothing"
    assert queue.complete("liar", [group_of(held, "liar", harness.version)]) == [Outcome.suspended]
    assert not queue.fail("liar", held.id, "spite")
    assert {task.attempt for task in queue.lease("w2", harness.version, 9).tasks} == {0}
    assert harness.complete((honest,)) == [Outcome.accepted]
    assert queue.reinstate(["liar", "w1"]) == 1
    assert queue.reinstate(["liar"]) == 0
    assert not queue.lease("liar", harness.version, 1).suspended
    harness.check()


def test_what_a_worker_had_sent_before_it_was_suspended_costs_no_attempt_and_is_no_reproach(
    harness: QueueHarness, queue: Clients, validator: GroupValidator
) -> None:
    first_, second = harness.lease(2, "liar")
    good = group_of(second, "liar", harness.version)
    tell(queue, first_.id, b"nothing")
    assert queue.complete("liar", [good]) == [Outcome.accepted]
    queue.suspend(0, "liar", "they were bad")
    assert queue.complete("liar", [good]) == [Outcome.accepted], "it was, and the answer was lost"
    drained = harness.drain(2)
    assert ([group.task for group in drained.groups], drained.malformed) == ([second.id], 1)
    assert harness.lease(1)[0].attempt == queue.audit().dead == 0
    assert not validator._streaks


def test_the_next_learner_judges_all_workers_anew(harness: QueueHarness, queue: Clients) -> None:
    queue.suspend(0, "w1", "they were bad")
    lineage = queue.resume().lineage
    assert not queue.lease("w1", Version(lineage, 0), 1).suspended
    with pytest.raises(FencedError):
        queue.suspend(0, "w1", "of an older learner")


def test_no_worker_is_blamed_for_what_another_wrote_under_its_name(
    harness: QueueHarness, queue: Clients, validator: GroupValidator
) -> None:
    """A worker's user may write entries of replay by hand, but not what an honest worker notes under its own name."""
    for task in harness.lease(9):
        harness.complete((task,), "honest")
        forge(queue, task, {b"group": b"nothing"})
    assert harness.drain(9).malformed == 9
    assert validator.find_unworthy() == [] and {dead.worker for dead in queue.dead()} == {""}


def test_a_learner_that_resumes_vets_what_it_had_drained(harness: QueueHarness, queue: Clients) -> None:
    (task,) = harness.lease(1)
    tell(queue, task.id, b"nothing")
    queue.client.rename(queue.keys.ready, queue.keys.in_hand)  # drained and not yet read
    assert queue.pending(queue.resume().lineage) == ()
    assert queue.dead()[0].worker == "liar"


@pytest.mark.parametrize(
    ("said", "payload"),
    [
        ({}, b"x" * (CAP + 1)),
        ({"worker": "a b"}, b""),
        ({"worker": "a" * 201}, b""),
        ({"worker": ""}, b""),
        ({"attempt": "0 in store"}, b""),
        ({"attempt": -1}, b""),
        ({"oldest": "nan"}, b""),
        ({"oldest": 1}, b""),
        ({"newest": 1e300}, b""),
        ({"lineage": ""}, b""),
        ({"samples": "9" * 1000}, b""),
        ({"tokens": "many"}, b""),
        ({"reward": "0" * 201}, b""),
        ({"reward": "high"}, b""),
        *(
            ({"reward": word}, b"")
            for word in ("nan", "-nan", "inf", "-inf", "1e999", "-1e999", "0x10", " 1", "1e", ".5")
        ),
        *(({"oldest": word}, b"") for word in ("0x0", "inf", "0.0", "1e0", " 0")),
        ({"tokens": "inf"}, b""),
        ({"samples": "nan"}, b""),
        ({"kind": "other"}, b""),
        ({"kind": "ref"}, b"weights/0001/00000001/manifest.json"),
        ({"kind": "ref"}, b"replay/" + b"0" * 40 + b"/" + b"0" * 64 + b"-" + b"0" * 16),
        ({"kind": "ref"}, folder("a/0/0").encode() + b"0" * 64),
        ({"kind": "ref"}, folder("a/0/0").encode() + b"0" * 64 + b"-" + b"0" * 15),
        ({"kind": "ref"}, folder("a/0/0").encode() + b"0" * 63 + b"/-" + b"0" * 16),
    ],
)
def test_redis_keeps_nothing_that_our_workers_never_say(
    harness: QueueHarness, queue: Clients, said: dict[str, Any], payload: bytes
) -> None:
    (task,) = harness.lease(1)
    used = queue.client.memory_usage(queue.keys.replay)
    with pytest.raises(Exception, match="EQREFUSED"):
        tell(queue, task.id, payload, **said)
    assert queue.client.memory_usage(queue.keys.replay) == used
    assert harness.complete((task,)) == [Outcome.accepted]


def test_a_group_above_the_cap_is_refused_before_it_is_sent(harness: QueueHarness, queue: Clients) -> None:
    (task,) = harness.lease(1)
    long = first(
        group_of(task, "w1", harness.version), tokens=np.zeros(9_000, np.int32), logprobs=np.zeros(9_000, "<f4")
    )
    small = Clients(queue.client, queue.run, group_max_bytes=CAP)
    with pytest.raises(CodecError, match=r"queue.group_max_bytes is 65536"):
        small.complete("w1", [long])
    with pytest.raises(ServiceError, match=r"queue.group_max_bytes is 65536"):
        queue.complete("w1", [long])


def test_an_object_above_the_cap_is_never_read(
    harness: QueueHarness, queue: Clients, object_store: ObjectStore
) -> None:
    (task,) = harness.lease(1)
    reader = Clients(queue.client, queue.run, object_store, group_max_bytes=CAP)
    data = b"x" * (CAP + 1)
    object_store.put(ref := new_reference(task.id, data), data)
    tell(queue, task.id, ref.encode(), "ref")
    assert reader.drain(0, 1).malformed == 1
    assert "has 65537 bytes, but its reader takes at most 65536" in queue.dead()[0].reason
    assert list(object_store.list(folder(task.id))) == []


def test_a_learner_removes_no_object_on_a_workers_word(
    harness: QueueHarness, queue: Clients, object_store: ObjectStore
) -> None:
    """Nor on the word of a worker that writes into the stream itself, which its user must be able to do."""
    ours, others = "checkpoints/0001/00000001/manifest.json", new_reference("a/0/9", b"another worker's")
    for key in (ours, others):
        object_store.put(key, b"precious")
    reader = Clients(queue.client, queue.run, object_store)
    for number, ref in enumerate((ours, others, "replay/", "")):
        (task,) = harness.lease(1)
        tell(queue, task.id, new_reference(task.id, b"").encode(), "ref")
        forge(queue, task, {b"ref": ref.encode()})
        assert reader.drain(0, 1).malformed == 1, number
    assert all("no payload of its task" in dead.reason for dead in queue.dead())
    assert {stored.key for stored in object_store.list()} == {ours, others}


@pytest.mark.parametrize(
    "words", [{b"samples": b"\xff"}, {b"ref": b"\xff", b"group": None}, {b"worker": None}, {b"id": None}]
)
def test_an_entry_that_no_function_wrote_is_buried_too(
    harness: QueueHarness, queue: Clients, words: dict[bytes, Any]
) -> None:
    (task,) = harness.lease(1)
    harness.complete((task,))
    forge(queue, task, words)
    assert harness.drain(1).malformed == 1
    assert queue.dead()[0].id == task.id


def forge(queue: Clients, task: Task, changes: dict[bytes, bytes | None]) -> None:
    """Another entry in the place of the one that `task` has in replay: changed words, None for one left out."""
    place: Any = queue.client.hget(queue.keys.open, task.id)
    _, entry, rest = place.split(b" ", 2)
    ((_, words),) = queue.client.xrange(queue.keys.replay, entry, entry)
    words = {name: value for name, value in (words | changes).items() if value is not None}
    forged = queue.client.xadd(queue.keys.replay, words)
    queue.client.xdel(queue.keys.replay, entry)
    queue.client.hset(queue.keys.open, task.id, b"replay " + forged + b" " + rest)
    score: Any = queue.client.zscore(queue.keys.ready, entry + b" " + task.id.encode())
    queue.client.zrem(queue.keys.ready, entry + b" " + task.id.encode())
    queue.client.zadd(queue.keys.ready, {forged + b" " + task.id.encode(): score})


@pytest.mark.parametrize(
    "words", [["version", "latest"], ["version", "1.1", "tokens_per_s", "fast"], ["other", "x"], ["version", "9" * 200]]
)
def test_a_heartbeat_that_cannot_be_read_spoils_no_status(
    harness: QueueHarness, queue: Clients, words: list[str]
) -> None:
    queue.heartbeat("w1", Heartbeat("engine", Version(0, 0), "idle"))
    queue.client.fcall("eq1_heartbeat", 1, queue.keys.prefix, "odd", 60_000, *words)
    beats = {worker.name: worker.heartbeat for worker in queue.status().workers}
    assert beats["w1"] and beats["w1"].state == "idle"
    assert beats["odd"] and beats["odd"].state == "unreadable"


@pytest.mark.parametrize("words", [["state", "x" * 201], ["state", "x"] * 25])
def test_a_heartbeat_is_short(harness: QueueHarness, queue: Clients, words: list[str]) -> None:
    with pytest.raises(Exception, match="EQREFUSED"):
        queue.client.fcall("eq1_heartbeat", 1, queue.keys.prefix, "odd", 60_000, *words)


def test_a_good_group_of_one_token_is_no_exception(harness: QueueHarness, queue: Clients) -> None:
    (task,) = harness.lease(1)
    one = Sample(np.array([7], np.int32), np.array([0.0], np.float32), (Span(0, 0),), 1.0, "stop")
    queue.complete("w1", [replace(group_of(task, "w1", harness.version), samples=(one, one))])
    assert len(harness.drain(1).groups) == 1


def unfit(group: Group) -> tuple[GroupLimits, ...]:
    """Limits of another configuration, each of which excludes this group of two samples for one reason."""
    return (
        replace(LIMITS, samples=3),
        replace(LIMITS, prompt_tokens=len(group.prompt) - 1),
        replace(LIMITS, new_tokens=len(group.samples[0].tokens) - 1),
        replace(LIMITS, reward_max=0.5),
    )


@pytest.mark.parametrize("which", range(4))
def test_what_a_changed_configuration_excludes_is_generated_again_and_nobody_is_blamed(
    harness: QueueHarness, queue: Clients, which: int
) -> None:
    """The learner starts with other limits, while more groups than its patience are in hand, ready or under way."""
    tasks = harness.lease(7)
    harness.complete(tasks[:6])
    harness.drain(3)
    validator = GroupValidator(unfit(group_of(tasks[0], "w1", harness.version))[which], Version(0, 0), patience=3)
    after = Clients(queue.client, queue.run, deadline_s=10.0, validator=validator)
    lineage = after.resume().lineage
    validator.newest = Version(lineage, 0)
    assert after.pending(lineage) == ()
    harness.complete(tasks[6:])
    assert after.drain(lineage, 9).groups == ()
    assert validator.find_unworthy() == []
    audit, status = queue.audit(), queue.status()
    assert (audit.ok, audit.dead, status.retry, status.counts["unfit"]) == (True, 0, 7, 7)
    fresh = queue.lease("w1", Version(lineage, 0), 1).tasks
    assert (fresh[0].attempt, fresh[0].late) == (0, 0)
    queue.complete("w1", [group_of(fresh[0], "w1", Version(lineage, 0))])
    assert after.drain(lineage, 9).malformed == 1, "of the new lineage, it is its worker's fault"


def test_a_group_is_sent_back_as_unfit_at_its_place_only(harness: QueueHarness, queue: Clients) -> None:
    (task,) = harness.lease(1)
    harness.complete((task,))
    place = queue.client.hget(queue.keys.open, task.id).split()[1]  # type: ignore[union-attr]
    assert not queue.return_unfit(0, task.id.encode(), b"1-1")
    assert queue.return_unfit(0, task.id.encode(), place)
    assert not queue.return_unfit(0, task.id.encode(), place)
    harness.check()
