"""Every move of the queue once, in the order of a run's life; what each must answer however often it was sent."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from echo_queue.errors import Problem
from echo_queue.queue import Chunk, Evaluations, Heartbeat, Outcome, Peer, PromptSet, RunKeys, UpdateRecord, WorkerOrder
from echo_queue.records import NOTHING, PartialGroup, PromptShard, Published, Task, Version
from echo_queue.records.group_codec import CodecError
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of, partial_of

Meet = Callable[[Callable[[], Any]], Any]
"""Makes a move while it meets a fault, and returns its answer."""


TRIES = 3


def every_move(queue: Clients, spoiled: Clients, meet: Meet) -> None:
    """`queue` leads straight to the server, `spoiled` through a proxy; both are of one run, not configured yet."""
    rules = replace(RULES, s=4, max_attempts=1)
    meet(lambda: spoiled.configure(rules))
    harness = QueueHarness(queue, rules, prompts=0)
    meet(lambda: spoiled.declare(PromptSet("a", "source"), [Chunk(0, 0, 8)]))
    meet(lambda: spoiled.reject("a", Chunk(0, 0, 8), "unreadable"))
    meet(lambda: spoiled.submit("a", 0, PromptShard("shard", 0, 8)))
    meet(spoiled.admit)
    assert queue.audit().submitted == 8
    tasks = _work(queue, spoiled, meet, harness.version)
    _learn(queue, spoiled, meet, [task.id for task in tasks])


def _work(queue: Clients, spoiled: Clients, meet: Meet, version: Version) -> tuple[Task, ...]:
    """Makes the moves of workers; returns the tasks that are completed."""
    tasks = meet(lambda: spoiled.lease("w1", version, 6)).tasks
    assert len(tasks) == 6
    assert meet(lambda: spoiled.renew("w1", {task.id: 0 for task in tasks})) == []
    partial_payloads = [PartialGroup(task.id, 0, (partial_of(0), NOTHING)) for task in tasks]
    tries = range(TRIES)  # what a full server refuses is not sent again by itself
    assert meet(lambda: [spoiled.progress("w1", partial_payloads) for _ in tries]) == [[] for _ in tries]
    assert meet(lambda: spoiled.release("w1", [tasks[5].id])) == 1
    assert meet(lambda: spoiled.fail("w1", tasks[4].id, "reason"))
    meet(spoiled.reclaim)
    assert (queue.status().counts["released"], queue.audit().dead) == (1, 1)
    again = meet(lambda: spoiled.lease("w2", version, 1))
    assert [one.task for one in again.partials.values()] == [tasks[5].id]
    meet(lambda: spoiled.discard("w2", [tasks[5].id]))
    assert queue.client.hexists(queue.keys.partials, tasks[5].id) == 0
    queue.client.sadd(queue.keys.unwanted, "partials/one")
    assert meet(spoiled.unwanted) == ["partials/one"]
    assert meet(lambda: spoiled.unwanted(["partials/one"])) == []
    assert meet(lambda: spoiled.release("w2", [tasks[5].id])) == 1
    meet(spoiled.reclaim)
    assert len(queue.lease("invited-1", version, 1).tasks) == 1
    assert meet(lambda: spoiled.evict("invited-")) == 1
    meet(spoiled.reclaim)
    done = [group_of(task, "w1", version) for task in tasks[:4]]
    assert meet(lambda: spoiled.complete("w1", done)) == [Outcome.accepted] * 4
    return tuple(tasks[:4])


def _learn(queue: Clients, spoiled: Clients, meet: Meet, completed: Sequence[str]) -> None:
    """Makes the moves of learners, peers and operators."""
    lineage = meet(spoiled.resume).lineage
    assert lineage == 1
    trust = RunKeys("key", b"secret", b"")
    meet(lambda: spoiled.publish_keys(lineage, trust))
    assert spoiled.run_keys() == trust
    drained = [group.task for group in meet(lambda: spoiled.drain(lineage, 2)).groups]
    assert len(set(drained)) == 2
    left, bad = (task for task in completed if task not in drained)
    assert len(meet(lambda: spoiled.pending(lineage))) == 2
    assert not meet(lambda: spoiled.restore(lineage, "1/1", drained)), "this queue has forgotten nothing"
    meet(lambda: [spoiled.learner(lineage).has_room(100) for _ in range(TRIES)])
    assert meet(lambda: spoiled.skip(lineage, 1)) == 1
    meet(lambda: spoiled.advance(lineage, 1, 1, 8.0))
    assert meet(lambda: spoiled.announce(lineage, Version(lineage, 1), "0001.00000001/full", 0, b"document"))
    announced = queue.latest_weights().announced
    assert announced and queue.announced_parts(announced, 0) == {0: b"document"}
    told = UpdateRecord(Version(lineage, 1), "0.1.0", drained[0], b"{}")
    spoiled.record(lineage, [told])
    meet(lambda: spoiled.publish(lineage, Published(Version(lineage, 1), "manifest", "digest")))
    _evaluate(queue, spoiled, meet, Version(lineage, 1))
    meet(lambda: spoiled.commit(lineage, "1/1", drained))
    assert queue.updates() == [told], "it went with the commit"
    known = meet(lambda: spoiled.set_digests(lineage, ["a"]))
    assert known["a"]
    entry = queue.client.hget(queue.keys.open, left).split()[1]  # type: ignore[union-attr]
    meet(lambda: spoiled.return_unfit(lineage, left.encode(), entry))
    assert queue.status().counts["unfit"] == 1
    entry = queue.client.hget(queue.keys.open, bad).split()[1]  # type: ignore[union-attr]
    meet(lambda: spoiled.reject_group(lineage, bad.encode(), entry, CodecError(Problem("a group", "bad", ""))))
    meet(lambda: spoiled.suspend(lineage, "w9", "bad groups"))
    assert meet(lambda: spoiled.reinstate(["w9"])) <= 1, "0 where the answer was lost"
    meet(lambda: spoiled.bury(left, "by hand"))
    meet(lambda: spoiled.revive([left]))
    _lead(queue, spoiled, meet)
    ordered = meet(lambda: spoiled.heartbeat("w1", Heartbeat("engine", Version(1, 1), "idle")))
    assert ordered == WorkerOrder("leave", 20.0)
    for worker in ("w1", "w2"):
        joined = meet(lambda worker=worker: spoiled.join(Peer(worker, "here", "127.0.0.1:1"), "0001.00000001/full"))
    assert [upstream.worker for upstream in joined.upstreams] == ["w1"]
    assert meet(lambda: spoiled.report("w2", "w1", "bad")) == 1
    meet(lambda: spoiled.withdraw("w1"))
    meet(lambda: spoiled.leave("w1"))
    assert not meet(lambda: spoiled.finish(lineage))
    assert meet(lambda: spoiled.finish(lineage, force=True))
    meet(spoiled.status)

    status = queue.status()
    assert (status.trained, status.uncommitted, status.learner, status.finished) == (2, 0, Version(1, 1), True)
    assert (status.in_flight, status.dead, status.counts.get("duplicate", 0)) == (0, 2, 0)
    meet(lambda: spoiled.uncommit(lineage, "1/1", "", drained))
    assert meet(spoiled.audit).trained == 0


def _evaluate(queue: Clients, spoiled: Clients, meet: Meet, version: Version) -> None:
    """Makes the moves of a round of evaluation."""
    queue.declare(PromptSet("held", "source", order="held_out"), [Chunk(0, 0, 3)])
    queue.submit("held", 0, PromptShard("shard", 0, 3))
    tries = range(TRIES)  # what a full server refuses is not sent again by itself
    assert meet(lambda: [spoiled.evaluate(version.lineage, version, "held") for _ in tries])[-1] == 1
    tasks = queue.lease("w3", version, 2).tasks
    assert queue.complete("w3", [group_of(task, "w3", version) for task in tasks]) == [Outcome.accepted] * 2
    assert [one.task for one in spoiled.scored(version.lineage)] == ["held/1/0", "held/1/1"]
    meet(lambda: spoiled.conclude(version.lineage, 1, b"{}"))
    audit = queue.audit()
    assert (audit.asked, audit.concluded, Evaluations(queue.caller).lines()) == (3, 3, [b"{}"])


def _lead(queue: Clients, spoiled: Clients, meet: Meet) -> None:
    """Makes the moves of a fleet's controller."""
    controller = spoiled.controller("c1")
    meet(lambda: controller.pause(paused=True))
    term = meet(lambda: controller.lead(60.0))
    assert (term.number, term.leader, term.plan, term.paused) == (1, "c1", b"", True)
    meet(lambda: controller.pause(paused=False))
    meet(lambda: controller.plan(b"{}", {"spot": 3}))
    meet(lambda: controller.order(WorkerOrder("leave", 20.0), ["w1"]))
    meet(controller.resign)
    fleet = queue.fleet()
    assert (fleet.leader, fleet.leads_ms, fleet.paused, fleet.wanted) == ("c1", 0, False, {"spot": 3})
