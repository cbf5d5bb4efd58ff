"""The identity under any order of moves: random submitters, workers, learners, restarts and silences.

Beside the identity of `audit`, a model in this file knows which ids were ever trained, and by which lag.
"""

import os
import time
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echo_queue.queue import Chunk, PromptSet, Queue, QueuePolicy
from echo_queue.records import Published, Shard, Task, Version
from echo_queue.services.redis_server import RedisServer
from tests.queue.scene import group_of

_examples = count()


class Conservation(RuleBasedStateMachine):
    """One learner, three workers and two sets, in any order that Hypothesis finds."""

    server: RedisServer

    @initialize(
        s=st.integers(0, 3), batch=st.integers(1, 3), pace=st.booleans(), late=st.sampled_from(["requeue", "wait"]),
        orders=st.tuples(*[st.sampled_from(["sequential", "shuffled"])] * 2),
    )  # fmt: skip
    def begin(self, s: int, batch: int, pace: bool, late: str, orders: tuple[str, str]) -> None:
        self.queue = Queue(self.server.client(), f"machine-{os.getpid()}-{next(_examples)}")
        self.policy = QueuePolicy(s=s, batch=batch, pace=pace, late=late, max_attempts=2, lease_ms=60_000)  # type: ignore[arg-type]
        self.queue.configure(self.policy)
        for name, order in zip("ab", orders, strict=True):
            rules = PromptSet(name, "source", epochs=2, priority=ord(name), order=order)  # type: ignore[arg-type]
            self.queue.declare(rules, [Chunk(at, 5 * at, 5) for at in range(2)])
        self.lineage = self.version = 0
        self.weights = Version(0, 0)
        self.queue.publish(0, Published(self.weights, "m", "d"))
        self.held: list[tuple[str, Task, Version]] = []
        self.hand: list[str] = []
        self.uncommitted: list[tuple[int, str]] = []
        self.trained: set[str] = set()

    @rule(name=st.sampled_from("ab"), chunk=st.integers(0, 1))
    def submit(self, name: str, chunk: int) -> None:
        self.queue.submit(name, chunk, Shard("shard", 5 * chunk, 5))

    @rule(worker=st.sampled_from(["w1", "w2", "w3"]), size=st.integers(1, 4))
    def lease(self, worker: str, size: int) -> None:
        lease = self.queue.lease(worker, self.weights, size)
        assert lease.abandoned == (self.weights.lineage < self.lineage and self.weights.number > self.version_at_fork)
        self.held += [(worker, task, self.weights) for task in lease.tasks]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        worker, task, version = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.queue.complete(worker, [group_of(task, worker, version)])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["release", "fail", "forget"]))
    def give_up(self, data: st.DataObject, how: str) -> None:
        worker, task, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if how == "release":
            self.queue.release(worker, [task.id])
        elif how == "fail":
            self.queue.fail(worker, task.id, "reason")

    @rule(silent=st.booleans())
    def reclaim(self, silent: bool) -> None:
        if silent:
            self.queue.configure(replace(self.policy, lease_ms=1))
            time.sleep(0.003)
        self.queue.reclaim()
        self.queue.configure(self.policy)

    @rule(size=st.integers(1, 3))
    def drain(self, size: int) -> None:
        drained = self.queue.drain(self.lineage, size)
        for group in drained.groups:
            assert self.version - group.oldest <= self.policy.s
            assert group.task not in self.trained
        self.hand += [group.task for group in drained.groups]

    @rule(publish=st.booleans())
    def update(self, publish: bool) -> None:
        self.version += 1
        self.queue.advance(self.lineage, self.version, len(self.hand), 2.0)
        self.uncommitted += [(self.version, task) for task in self.hand]
        self.hand = []
        if publish:
            self.weights = Version(self.lineage, self.version)
            self.queue.publish(self.lineage, Published(self.weights, "m", "d"))

    @rule()
    def commit(self) -> None:
        ids = [task for _, task in self.uncommitted]
        assert self.queue.commit(self.lineage, ids) == len(ids)
        self.trained |= set(ids)
        self.uncommitted = []
        self.checkpoint = self.version

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """Back to a checkpoint between the last commit and now, which holds what was trained up to there."""
        version = data.draw(st.integers(self.checkpoint, self.version))
        kept = [task for at, task in self.uncommitted if at <= version]
        lost = [task for at, task in self.uncommitted if at > version] + self.hand
        self.lineage = self.queue.resume(version, kept)
        self.version = self.version_at_fork = self.checkpoint = version
        self.trained |= set(kept)
        self.uncommitted = []
        self.hand = [group.task for group in self.queue.pending(self.lineage)]
        assert set(self.hand) <= set(lost)
        if self.queue.published() is None:
            self.weights = Version(self.lineage, version)
            self.queue.publish(self.lineage, Published(self.weights, "m", "d"))

    @rule(data=st.data())
    def bury_and_revive(self, data: st.DataObject) -> None:
        dead = [task.id for task in self.queue.dead()]
        assert self.queue.revive(dead) == len(dead)

    @invariant()
    def the_identity_holds(self) -> None:
        audit = self.queue.audit()
        assert audit.ok, audit
        assert audit.trained == len(self.trained)

    version_at_fork = 0
    checkpoint = 0


@pytest.mark.slow
def test_no_order_of_moves_loses_or_duplicates_a_prompt(redis_server: RedisServer) -> None:
    Conservation.server = redis_server
    Conservation.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    case = Conservation.TestCase()
    case.runTest()
