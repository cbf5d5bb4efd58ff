"""All clients of a run in one object, for tests that play every role: as an admin, or as whatever user is given.

Moves of the learner take the lineage first, so that one test can hold several learners.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import redis

from echo_queue.config import Config
from echo_queue.connections.secrets import Role
from echo_queue.queue import (
    Admin,
    Caller,
    Drained,
    EvaluationQueue,
    FleetQueue,
    LearnerQueue,
    Monitor,
    Payloads,
    PeerDirectory,
    Resumed,
    RunKeys,
    RunRules,
    SubmitterQueue,
    UpdateRecord,
    WorkerQueue,
)
from echo_queue.queue.caller import DEADLINE_S, NO_REPLICAS, Replicas
from echo_queue.queue.learner import NO_SETS
from echo_queue.queue.payloads import INLINE_MAX_BYTES, PayloadStore
from echo_queue.queue.run_rules import words_of
from echo_queue.queue.sent_progress import SentProgress
from echo_queue.queue.types import ScoredTask
from echo_queue.records import BASE, Group, Published, Version
from echo_queue.records.group_codec import GROUP_MAX_BYTES, CodecError
from echo_queue.records.validation import GroupLimits, GroupValidator


class Clients(WorkerQueue, PeerDirectory, SubmitterQueue, Monitor, Admin):  # type: ignore[misc]
    """Run `run` as the user of `client`."""

    ROLE = "admin"

    def __init__(
        self,
        client: "redis.Redis",
        run: str,
        store: PayloadStore | None = None,
        inline_max_bytes: int = INLINE_MAX_BYTES,
        *,
        deadline_s: float = DEADLINE_S,
        group_max_bytes: int = GROUP_MAX_BYTES,
        replicas: Replicas = NO_REPLICAS,
        validator: GroupValidator | None = None,
        limits: GroupLimits | None = None,
    ) -> None:
        self._hold(
            Caller(client, run, deadline_s, replicas),
            Payloads(store, inline_max_bytes, group_max_bytes, validator=validator, limits=limits),
        )

    @classmethod
    def of(cls, caller: Caller, payloads: Payloads | None = None) -> Self:
        clients = cls.__new__(cls)
        clients._hold(caller, payloads or Payloads())
        return clients

    @classmethod
    def connected_as(
        cls, config: Config, role: Role, store: PayloadStore | None = None, deadline_s: float = DEADLINE_S
    ) -> Self:
        return cls.of(Caller.connect(config, role, deadline_s), Payloads.of(config, store))

    def _hold(self, caller: Caller, payloads: Payloads) -> None:
        self._caller, self._payloads, self._sent = caller, payloads, SentProgress(payloads.inline_max_bytes)
        self.client, self.keys = caller.client, caller.keys
        self._learners: dict[int, LearnerQueue] = {}

    @property
    def caller(self) -> Caller:
        return self._caller

    @property
    def payloads(self) -> Payloads:
        return self._payloads

    def learner(self, lineage: int = 0) -> LearnerQueue:
        """Another client of a learner, as the product has it."""
        return LearnerQueue(self._caller, self._payloads, lineage)

    def controller(self, name: str) -> FleetQueue:
        """A client of a controller, as the product has it."""
        return FleetQueue(self._caller, name)

    def evaluator(self, lineage: int) -> EvaluationQueue:
        """A client of a learner's evaluations, as the product has it."""
        return EvaluationQueue(self._caller, self._payloads, lineage)

    def _of(self, lineage: int) -> LearnerQueue:
        return self._learners.setdefault(lineage, self.learner(lineage))

    def overrule(self, rules: RunRules) -> None:
        """Writes the rules by hand, as no role may: they change with a lineage only."""
        words = [str(word) for word in words_of(rules)]
        self.client.hset(self.keys.rules, mapping=dict(zip(words[::2], words[1::2], strict=True)))

    def resume(
        self,
        begin: Version = BASE,
        floor: int = 0,
        rules: RunRules | None = None,
        sets: Mapping[str, str] = NO_SETS,
    ) -> Resumed:
        """Begins a lineage; its rules are those that the run has, unless others are given."""
        learner = self.learner()
        resumed = learner.resume(rules or self.status().rules, begin, floor, sets)
        self._learners[resumed.lineage] = learner
        return resumed

    def wait_for_groups(self, cursor: str, timeout_s: float) -> str:
        return self.learner().wait_for_groups(cursor, timeout_s)

    def evaluate(self, lineage: int, version: Version, *sets: str) -> int | None:
        return self.evaluator(lineage).evaluate(version, sets)

    def scored(self, lineage: int, after: str = "") -> list[ScoredTask]:
        return self.evaluator(lineage).scored(after)

    def conclude(self, lineage: int, number: int, *lines: bytes) -> None:
        self.evaluator(lineage).conclude(number, lines)

    def pending(self, lineage: int) -> tuple[Group, ...]:
        return self._of(lineage).pending()

    def drain(self, lineage: int, need: int) -> Drained:
        return self._of(lineage).drain(need)

    def advance(self, lineage: int, version: int, trained: int, window: float) -> int:
        return self._of(lineage).advance(version, trained, window)

    def skip(self, lineage: int, groups: int) -> int:
        return self._of(lineage).skip(groups)

    def commit(self, lineage: int, checkpoint: str, task_ids: Sequence[str]) -> int:
        return self._of(lineage).commit(checkpoint, task_ids)

    def restore(self, lineage: int, checkpoint: str, task_ids: Sequence[str]) -> bool:
        return self._of(lineage).restore(checkpoint, task_ids)

    def uncommit(self, lineage: int, checkpoint: str, parent: str, task_ids: Sequence[str]) -> int:
        return self._of(lineage).uncommit(checkpoint, parent, task_ids)

    def publish_keys(self, lineage: int, keys: RunKeys) -> None:
        self._of(lineage).publish_keys(keys)

    def record(self, lineage: int, records: Sequence[UpdateRecord]) -> None:
        """It goes with the next numbered move of this lineage."""
        self._of(lineage).record(records)

    def announce(self, lineage: int, version: Version, route: str, place: int, document: bytes) -> bool:
        return self._of(lineage).announce(version, route, place, document)

    def publish(self, lineage: int, published: Published) -> bool:
        return self._of(lineage).publish(published)

    def suspend(self, lineage: int, worker: str, reason: str, task_ids: Sequence[str] = ()) -> int:
        return self._of(lineage).suspend(worker, reason, task_ids)

    def reject_group(self, lineage: int, task_id: bytes, entry: bytes, error: CodecError) -> str | None:
        return self._of(lineage)._reject_group(task_id, entry, error)

    def return_unfit(self, lineage: int, task_id: bytes, entry: bytes) -> bool:
        return self._of(lineage).return_unfit(task_id, entry)

    def set_digests(self, lineage: int, names: Sequence[str]) -> dict[str, str]:
        return self._of(lineage).set_digests(names)

    def finish(self, lineage: int, force: bool = False) -> bool:
        return self._of(lineage).finish(force)
