"""The queue of one run: one method per atomic move of `library/`, frozen values in and out.

- Every method may be repeated; each goes through one retry loop, so a caller sees either the answer or an error
  that says what to do. At-least-once calls, exactly-once effects.
- `payloads` and `partial_payloads` keep bytes, `replies` reads answers, `caller` retries; this file
  only names the moves.
"""

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import redis

from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import library, replies
from echo_queue.queue.caller import NO_REPLICAS, Caller, Replicas, answers
from echo_queue.queue.keys import Keys
from echo_queue.queue.partial_payloads import PartialPayloads
from echo_queue.queue.payloads import Payloads, PayloadStore
from echo_queue.queue.types import (
    Announced,
    Audit,
    Chunk,
    Complaint,
    DeadTask,
    Drained,
    Heartbeat,
    Joined,
    LatestWeights,
    Lease,
    Outcome,
    Peer,
    PromptSet,
    Reclaimed,
    Resumed,
    RunKeys,
    RunRules,
    Status,
    SubmissionCounts,
    SubmissionStatus,
    WaitingChunk,
)
from echo_queue.records import BASE, Group, PartialGroup, PromptShard, Published, Version
from echo_queue.records.group_codec import GROUP_MAX_BYTES, CodecError, encode

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role

INLINE_MAX_BYTES = 1 << 20
DEADLINE_S = 60.0
BLOCK_S = 2.0
"""Longest single blocking read; a connection's socket timeout must be above it."""
SWEEP_MAX = 64
ANNOUNCED_KEPT = 256
"""Parts of the version under way of which Redis has the documents, as `library/learner.lua` says."""
BEATS_MISSED = 5


class Queue:
    """Moves of run `run`. `deadline_s` bounds how long a method waits for a server that is away."""

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
    ) -> None:
        self.run = run
        self.keys = Keys(run)
        self.client = client
        self.payloads = Payloads(store, inline_max_bytes, group_max_bytes)
        self.partial_payloads = PartialPayloads(store, inline_max_bytes, group_max_bytes)
        self._turn: int | None = None
        self.caller = Caller(client, f"queue of run {run}", deadline_s, replicas)

    @classmethod
    def connect(cls, config: "Config", role: "Role", store: PayloadStore | None = None) -> "Queue":
        """The queue of the configured run, as the user of `role`."""
        from echo_queue.connections.connect import connect_redis

        settings = config.queue
        return cls(
            connect_redis(config, role),
            config.run.name,
            store,
            inline_max_bytes=settings.inline_max_bytes,
            group_max_bytes=settings.group_max_bytes,
            replicas=Replicas(config.redis.wait_replicas, config.redis.wait_ms),
        )

    # Services ---------------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Loads the Lua library; needs a user that may `FUNCTION LOAD`."""
        self.caller.persist("install", lambda: library.load(self.client))

    def configure(self, rules: RunRules) -> None:
        """Creates the run, or changes its rules."""
        self._call("configure", *replies.rules_words(rules))

    # Submitters -------------------------------------------------------------------------------------------------------

    def declare(self, prompt_set: PromptSet, chunks: Sequence[Chunk]) -> bool:
        """Registers a set and its chunks, numbered 0, 1, … without gaps. False if it was declared before.

        Chunks that failed wait again, with the content given now. Raises `ServiceError` if the name stands
        for other prompts.
        """
        if [chunk.number for chunk in chunks] != list(range(len(chunks))) or not chunks:
            raise ValueError(f"chunks of {prompt_set.name} must be numbered 0, 1, … and there must be one")
        ranges = [part for chunk in chunks for part in (chunk.first, chunk.count, chunk.digest, chunk.ticket)]
        rules = (prompt_set.epochs, prompt_set.priority, prompt_set.order, prompt_set.seed, prompt_set.length_feature)
        return bool(self._call("declare", prompt_set.name, prompt_set.source, *rules, *ranges))

    def submit(self, name: str, chunk: int, shard: PromptShard, buckets: bytes = b"") -> bool:
        """Chunk `chunk` of set `name` has become `shard`: its prompts join the backlog. False if they had before.

        `buckets`: a byte for each prompt, 1 … 63 alike for those whose answers may be of similar length, or 0.
        """
        return bool(self._call("submit", name, chunk, shard.first, shard.count, shard.object, buckets))

    def reject(self, name: str, chunk: Chunk, reason: str) -> bool:
        """The chunk cannot be read, and why. False if it is settled, or has other content by now."""
        return bool(self._call("reject", name, chunk.number, chunk.digest, reason))

    def submission_status(self, name: str) -> SubmissionStatus | None:
        """How far the submission of a set is, chunk by chunk; None if no such set was declared."""

        def read() -> list[Any]:
            pipe = self.client.pipeline(transaction=False)  # what is used of the first never changes
            pipe.hgetall(self.keys.set(name))
            pipe.hgetall(self.keys.chunks(name))
            return pipe.execute()

        words, marks = self.caller.persist("settled_ids", read)
        if not words:
            return None
        return replies.submission_status_of(
            name, {replies.text(key): replies.text(value) for key, value in words.items()}, marks
        )

    def submission_counts(self, name: str) -> SubmissionCounts | None:
        """How far the submission of a set is, in numbers; None if no such set was declared."""
        names = [field.name for field in fields(SubmissionCounts)]
        words = self.caller.persist("submission_counts", lambda: self.client.hmget(self.keys.set(name), names))
        return None if None in words else SubmissionCounts(*map(int, words))

    def waiting_chunk(self, name: str, number: int) -> WaitingChunk | None:
        """One chunk of a set; None if it is settled or was never declared."""

        def read() -> list[Any]:
            pipe = self.client.pipeline(transaction=True)
            pipe.hmget(self.keys.set(name), "source", "feature")
            pipe.hget(self.keys.chunks(name), str(number))
            return pipe.execute()

        (source, feature), mark = self.caller.persist("waiting_chunk", read)
        chunk = replies.waiting_chunk_of(number, mark) if mark else None
        return None if chunk is None else WaitingChunk(replies.text(source), replies.text(feature or b""), chunk)

    def unserved(self) -> list[str]:
        """Names of the sets of which prompts are still to come, or in the backlog."""
        names = self.caller.persist("unserved", lambda: self.client.zrange(self.keys.backlog, 0, -1))
        return [replies.text(name) for name in names]

    def admit(self) -> int:
        """Backlog → tasks while bound and pace allow. How many were admitted."""
        return int(self._call("admit"))

    # Workers ----------------------------------------------------------------------------------------------------------

    def lease(self, worker: str, version: Version, count: int) -> Lease:
        """Up to `count` tasks, those that came back first. `version`: the weights this worker serves.

        A partial rollout that no worker can have made is dropped and counted: its task starts anew.
        """
        reply = self._call("lease", worker, *version, count, uuid.uuid4().hex)
        partials, bad = self.partial_payloads.partials_of(replies.kept_of(reply))
        self.discard(worker, bad)
        return replace(replies.lease_of(reply), partials=partials)

    def renew(self, worker: str, held: Mapping[str, int]) -> list[str]:
        """Keeps leases; returns the ids no longer held. `held`: task id → the version of its oldest token."""
        words = [word for task in held.items() for word in task]
        lost = self._call("renew", worker, *words) if held else []
        return [replies.text(task_id) for task_id in lost]

    def progress(self, worker: str, partials: Sequence[PartialGroup]) -> list[str]:
        """Keeps how far tasks are, in place of what was kept, for whoever leases them next. Returns the ids no longer
        held, of which nothing was kept. A full server keeps nothing either, which only costs tokens.

        Raises `CodecError` for what is no partial rollout, or a larger one than `queue.group_max_bytes`.
        """
        calls = [("progress", worker, *self.partial_payloads.keep(worker, one)) for one in partials]
        answered = (
            self.caller.move("progress", self.keys.prefix, calls, (worker, partials), optional=True) if calls else []
        )
        return [one.task for one, kept in zip(partials, answered, strict=True) if not kept]

    def discard(self, worker: str, task_ids: Sequence[str]) -> int:
        """What was kept of these tasks, which `worker` holds, is of no use. Returns how many partials there were."""
        return int(self._call("discard", worker, *task_ids)) if task_ids else 0

    def release(self, worker: str, task_ids: Sequence[str]) -> int:
        """Hands tasks back: the next sweep sends them on at no cost of an attempt."""
        return int(self._call("release", worker, *task_ids)) if task_ids else 0

    def fail(self, worker: str, task_id: str, reason: str) -> bool:
        """The task could not be done: the next sweep counts an attempt. The last few KB of `reason` are kept."""
        return bool(self._call("fail", worker, task_id, reason))

    def complete(self, worker: str, groups: Sequence[Group]) -> list[Outcome]:
        """Tasks → replay, in one round trip; the first completion of a task wins, whoever holds its lease.

        Raises `CodecError` for what is no group, or a larger one than `queue.group_max_bytes`.
        """
        records = [(group, *self.payloads.keep(group.task, encode(group))) for group in groups]
        calls = [("complete", worker, *_metadata(group), kind, payload) for group, kind, payload in records]
        answered = self.caller.move("complete", self.keys.prefix, calls, (worker, groups)) if records else []
        outcomes = [Outcome(replies.text(reply)) for reply in answered]
        refused = [
            payload for outcome, (_, kind, payload) in zip(outcomes, records, strict=True)
            if kind == "ref" and outcome is not Outcome.accepted
        ]  # fmt: skip
        self.payloads.discard(refused)
        return outcomes

    def heartbeat(self, worker: str, heartbeat: Heartbeat, every_s: float = 1.0) -> None:
        """Heartbeat; it expires once a few of them, `every_s` apart, are missing."""
        self._call("heartbeat", worker, round(1000 * BEATS_MISSED * every_s), *replies.heartbeat_words(heartbeat))

    def leave(self, worker: str) -> None:
        """`worker` ends, and is no longer listed; what it still holds it keeps until its leases run out."""
        self._call("leave", worker)

    def join(self, peer: Peer, route: str, left: Collection[str] = (), *, anew: bool = False) -> Joined:
        """`peer` fetches a route: it takes its place in the region's chain, or keeps it, and is told who feeds it.

        `left`: upstreams that it does not want again. `anew`: it has nothing of the route; a place that its name may
        have from an earlier life does not count. Raises `ServiceError` for words of a form that we never use.
        """
        itself = (peer.address, peer.rate, peer.leaf, f"{peer.usd_per_gb:.6g}")
        reply = self._call("join", peer.worker, peer.region, route, int(anew), *itself, *sorted(left))
        return replies.joined_of(reply)

    def report(self, worker: str, peer: str, reason: Complaint) -> int:
        """`peer` served `worker` a bad chunk, or cannot be reached from it. Returns how many workers said so lately.

        Two of them make it a leaf for a while: one alone may be the one that is broken.
        """
        return int(self._call("report", worker, peer, reason))

    def withdraw(self, worker: str) -> None:
        """`worker` feeds nobody any more, as it is leaving."""
        self._call("withdraw", worker)

    def run_keys(self) -> RunKeys | None:
        """Whose weights to trust; None before the run's first learner has begun."""
        words = self.caller.persist("run_keys", lambda: self.client.hgetall(self.keys.run_keys))
        return replies.run_keys_of({replies.text(name): replies.text(value) for name, value in words.items()})

    # The learner ------------------------------------------------------------------------------------------------------

    def drain(self, lineage: int, need: int) -> Drained:
        """At most `need` admissible groups, oldest versions first; what is too old goes back in the same call.

        A group that cannot be read is buried with the reason.
        """
        reply = self._numbered("drain", lineage, need)
        self.payloads.discard(reply[-1])
        groups, malformed = self._groups(lineage, [(row[0], row[1]) for row in reply[0]])
        return replies.drained_of(reply, groups, malformed)

    def advance(self, lineage: int, version: int, trained: int, window: float) -> int:
        """The learner's new version, after an update on `trained` groups. Returns how many in flight were cancelled."""
        return int(self._numbered("advance", lineage, version, trained, window))

    def commit(self, lineage: int, checkpoint: str, task_ids: Sequence[str]) -> int:
        """→ trained, from wherever they are, once `checkpoint`, which holds them and its parent does not, is durable.

        Returns how many were in the queue; those that Redis has forgotten count as trained when they are admitted.
        """
        settled, refs = self._numbered("commit", lineage, checkpoint, *task_ids)
        self.payloads.discard(refs)
        return int(settled)

    def uncommit(self, lineage: int, checkpoint: str, parent: str, task_ids: Sequence[str]) -> int:
        """The opposite, for the queue's newest checkpoint when no surviving history holds it: trained → backlog."""
        return int(self._numbered("uncommit", lineage, checkpoint, parent, *task_ids))

    def publish(self, lineage: int, published: Published) -> bool:
        """Moves the pointer to the newest weights. False if it stands there or further already."""
        if published.version.lineage != lineage:
            raise ValueError(f"lineage {lineage} cannot publish {published.version}")
        return bool(self._call("publish", lineage, published.version.number, published.manifest, published.digest))

    def announce(self, lineage: int, version: Version, route: str, place: int, document: bytes) -> bool:
        """A part of a route to `version`, which is not published yet, is stored: its signed document. Parts in order.

        Replaces what was announced of another route. False if the version is published, or the document too large.
        """
        return bool(self._call("announce", lineage, version.number, route, place, document))

    def publish_keys(self, lineage: int, trust: RunKeys) -> None:
        """Tells workers whose weights to trust. It does not change during a lineage."""
        self._call("publish_keys", lineage, trust.public_key, trust.token_secret.hex(), trust.chunk_key.hex())

    def bury_bad_group(self, lineage: int, task_id: bytes, entry: bytes, error: CodecError) -> bool:
        """→ dead, for the bad group at `entry` of replay, counted as `bad_<cause>`. False if it is no longer there."""
        moved, *refs = self._call("bury_bad_group", lineage, task_id, entry, error.problems[0].what, error.cause)
        self.payloads.discard(filter(None, refs))
        return bool(moved)

    def finish(self, lineage: int, force: bool = False) -> bool:
        """Marks the run finished, which `Lease.finished` tells the workers, until anything new comes to be trained.

        False if there is something left to train; `force` leaves it.
        """
        return bool(self._call("finish", lineage, int(force)))

    def resume(self, begin: Version = BASE, floor: int = 0) -> Resumed:
        """A learner begins at the checkpoint of `begin`, in a new lineage above `floor`; whatever ran before is fenced.

        The caller then makes the queue follow its checkpoints (`commit`, `uncommit`) before it drains. If `published()`
        is None afterwards, publish these weights first.
        """
        lineage, committed = self._call("resume", *begin, floor, uuid.uuid4().hex)
        self._turn = 0
        return Resumed(int(lineage), replies.text(committed) or None)

    def pending(self, lineage: int) -> tuple[Group, ...]:
        """Groups drained and not committed, oldest first. To be called once, right after `resume`."""
        rows, refs = self._call("pending", lineage)
        self.payloads.discard(refs)
        return self._groups(lineage, [(row[0], row[1]) for row in rows])[0]

    # Housekeeping, operators and anyone who looks ---------------------------------------------------------------------

    def reclaim(self, limit: int = SWEEP_MAX) -> Reclaimed:
        """One sweep over at most `limit` expired leases: → retry, or → dead after too many attempts.

        A sweep that comes much too late after the one before spares leases that living workers may renew.
        """
        return Reclaimed(*self._call("reclaim", limit))

    def bury(self, task_id: str, reason: str) -> bool:
        """→ dead, by an operator. False if the task is dead already, not open, or in the learner's hands."""
        moved, *refs = self._call("bury", task_id, reason)
        self.payloads.discard(filter(None, refs))
        return bool(moved)

    def revive(self, task_ids: Sequence[str]) -> int:
        """Dead → retry, with all attempts before them again."""
        return int(self._call("revive", *task_ids)) if task_ids else 0

    def dead(self, limit: int = 100) -> list[DeadTask]:
        """The tasks given up last."""
        rows = self.caller.persist("dead", lambda: self.client.xrevrange(self.keys.dead, count=limit))
        return [replies.dead_of(words) for _, words in rows]

    def waiting(self, task: str | None = None) -> Group | None:
        """The group of a task that is made and not yet trained; of any task: the newest one. For people to look at.

        Raises `CodecError` for bytes that are none.
        """
        most = None if task else 1
        rows = self.caller.persist("waiting", lambda: self.client.xrevrange(self.keys.replay, count=most))
        wanted = task.encode() if task else None
        return next((self.payloads.group(words) for _, words in rows if wanted in (None, words.get(b"id"))), None)

    def begun(self, task: str) -> PartialGroup | None:
        """How far a task was when its worker last told. For people to look at. Raises `CodecError`."""
        words = self.caller.persist("begun", lambda: self.client.hget(self.keys.partials, task))
        return None if words is None else self.partial_payloads.partials(task, replies.kept_words(words))

    def published(self) -> Published | None:
        """The newest weights that may be fetched."""
        words = self.caller.persist("published", lambda: self.client.hgetall(self.keys.published))
        return replies.published_of({replies.text(name): replies.text(value) for name, value in words.items()})

    def latest_weights(self) -> LatestWeights:
        """The newest weights that may be fetched, and what is announced of those after them, in one round trip."""

        def read() -> list[Any]:
            pipe = self.client.pipeline(transaction=False)
            # In this order: what is not announced any more because it is published by now, is seen to be published.
            pipe.hmget(self.keys.coming, "route", "last")
            pipe.hgetall(self.keys.published)
            return pipe.execute()

        return replies.latest_weights_of(*self.caller.persist("latest_weights", read))

    def announced(self, announced: Announced, first: int) -> dict[int, bytes]:
        """The documents of its parts by their places, from `first` on, those that are kept; none once it is gone."""
        places = range(max(first, announced.last + 1 - ANNOUNCED_KEPT), announced.last + 1)
        words = self.caller.persist(
            "announced", lambda: self.client.hmget(self.keys.coming, "route", *map(str, places))
        )
        route, *documents = words
        found = dict(zip(places, documents, strict=True)) if route == announced.route.encode() else {}
        return {place: document for place, document in found.items() if document is not None}

    def audit(self) -> Audit:
        """The conservation identity, from one read-only snapshot."""
        return replies.audit_of(self._read("audit"))

    def status(self) -> Status:
        """Everything a person wants to see, from one read-only snapshot."""
        return replies.status_of(self._read("status"))

    def wait(self, cursor: str, timeout_s: float, kinds: Collection[str] = ()) -> str:
        """Blocks until an event after `cursor` (of one of `kinds`, if given) or `timeout_s`; returns the new cursor.

        Begin with "0-0", and look at the queue before each wait: then nothing is missed. Kinds: declared, submitted,
        admitted, completed, advanced, keys_published, announced, published, committed, resumed, returned, buried,
        revived, finished.
        """
        give_up = time.monotonic() + timeout_s
        wanted = {kind.encode() for kind in kinds}
        while (left_s := give_up - time.monotonic()) > 0:
            block_ms = max(1, round(1000 * min(left_s, BLOCK_S)))
            for _, entries in self._events(cursor, block_ms):
                cursor = replies.text(entries[-1][0])
                if not wanted or any(words[b"kind"] in wanted for _, words in entries):
                    return cursor
        return cursor

    # ------------------------------------------------------------------------------------------------------------------

    def _call(self, move: str, *args: Any) -> Any:
        return self.caller.move(move, self.keys.prefix, [(move, *args)], args)[0]

    def _numbered(self, move: str, lineage: int, *args: Any) -> Any:
        """A move of the learner, with its number: a server that has forgotten any before it refuses (`SetBackError`).

        A queue that did not `resume` itself goes on from the number that it finds.
        """
        if self._turn is None:
            known = self.caller.persist("turn", lambda: self.client.hget(self.keys.state, "turn"))
            self._turn = int(known.split()[0]) if known else 0
        answer = self._call(move, lineage, self._turn + 1, *args)
        self._turn += 1
        return answer

    def _read(self, question: str) -> Any:
        return self.caller.persist(question, lambda: self.client.fcall_ro(f"eq1_{question}", 1, self.keys.prefix))

    def _events(self, cursor: str, block_ms: int) -> Any:
        return self.caller.persist("wait", lambda: self.client.xread({self.keys.events: cursor}, block=block_ms))

    def _groups(self, lineage: int, places: list[tuple[bytes, bytes]]) -> tuple[tuple[Group, ...], int]:
        """The groups at these (task id, entry) in replay; those that are bad are buried and counted."""

        def fetch() -> list[Any]:
            pipe = self.client.pipeline(transaction=False)
            for _, entry in places:
                pipe.xrange(self.keys.replay, entry, entry)
            return answers(pipe.execute(raise_on_error=False))

        groups, malformed = [], 0
        fetched = self.caller.persist("fetch", fetch, places) if places else []
        for (task, entry), rows in zip(places, fetched, strict=True):
            if not rows:
                what = f"entry {replies.text(entry)} of {replies.text(task)} vanished"
                raise ServiceError(Problem(self.keys.replay, what, "was the stream trimmed? see `echo-queue audit`"))
            try:
                groups.append(self.payloads.group(rows[0][1]))
            except CodecError as error:
                malformed += self.bury_bad_group(lineage, task, entry, error)
        return tuple(groups), malformed


def _metadata(group: Group) -> tuple[Any, ...]:
    """The plain fields of a replay entry, in the order that `complete` takes them."""
    tokens = sum(len(sample.tokens) for sample in group.samples)
    reward = sum(sample.reward for sample in group.samples) / len(group.samples)
    versions = (group.oldest, group.newest, group.lineage)
    return group.task, group.attempt, *versions, len(group.samples), tokens, f"{reward:.4f}"
