"""Read-only views of a run: `RunState` for several roles, and `Monitor` for the Redis user `monitor`.

`status` and `audit` are the read-only functions of `library/monitor.lua`; everything else is read by plain commands.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Caller, Client, answers
from echo_queue.queue.payloads import Payloads
from echo_queue.queue.published_weights import PublishedWeights
from echo_queue.queue.submitter import REFUSED, Submissions
from echo_queue.queue.types import Audit, DeadTask, FleetStatus, Status, UpdateRecord, WorkerStatus
from echo_queue.records import BASE, Group, PartialGroup, Version
from echo_queue.records.foreign_numbers import whole

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role

PAGE = 256
"""The number of heartbeats, or of updates, that are read in one round trip."""
READS_MAX = 5
"""The number of times that a partial rollout is read until no worker has changed it meanwhile."""


class RunState(Client):
    """The state of a run: its status, its audit, and its dead tasks."""

    def status(self) -> Status:
        """Returns a full picture of the run for a person.

        Its numbers are one read-only snapshot. The workers are read right after it, in steps between which Redis serves
        others, because there may be thousands.
        """
        reply = self._caller.ask("status")
        return replies.status_of(reply, self._workers(now_ms=reply[-1]))

    def figures(self) -> Status:
        """Returns the numbers of `status` alone, without the workers: the server answers at once, however many live."""
        return replies.status_of(self._caller.ask("status"), ())

    def audit(self) -> Audit:
        """Returns both sides of the identity, counted independently, from one read-only snapshot."""
        return replies.audit_of(self._caller.ask("audit"))

    def _workers(self, now_ms: int) -> tuple[WorkerStatus, ...]:
        """Reads the workers heard of lately, and those that hold tasks although they were not."""
        client: Any = self._caller.client
        keys = self._caller.keys

        def look() -> list[Any]:
            pipe = client.pipeline(transaction=False)
            pipe.zrange(keys.workers, 0, -1, withscores=True)
            pipe.hgetall(keys.suspended)
            for stream in (keys.tasks, keys.retry, keys.evaluation):
                pipe.xpending(stream, "workers")
            return answers(pipe.execute(raise_on_error=False))

        known, suspended, *pending = self._caller.persist("workers", look)
        held = Counter[bytes]()
        for summary in pending:
            held.update({row["name"]: row["pending"] for row in summary["consumers"]})
        # A worker's user may have written any number, also an infinite one.
        silent_ms = {name: now_ms - int(min(max(heard_ms, 0), now_ms)) for name, heard_ms in known}
        names = list(dict.fromkeys((*silent_ms, *held, *suspended)))
        found = zip(names, self._heartbeats(names), strict=True)
        return tuple(
            replies.worker_of(name, silent_ms.get(name, -1), words, held[name], suspended.get(name, b""))
            for name, words in found
        )

    def _heartbeats(self, names: Sequence[bytes]) -> Iterator[Mapping[bytes, bytes]]:
        """Yields the heartbeats of these workers; an empty one if there is none."""
        client: Any = self._caller.client
        prefix = self._caller.keys.worker("").encode()
        for first in range(0, len(names), PAGE):

            def look(page: Sequence[bytes] = names[first : first + PAGE]) -> list[Any]:
                pipe = client.pipeline(transaction=False)
                for name in page:
                    pipe.hgetall(prefix + name)
                return answers(pipe.execute(raise_on_error=False))

            yield from self._caller.persist("workers", look)

    def dead(self, limit: int = 100) -> list[DeadTask]:
        """Returns the tasks that were buried last, the newest first, at most `limit`."""
        client, key = self._caller.client, self._caller.keys.dead
        rows = self._caller.persist("dead", lambda: client.xrevrange(key, count=limit))
        return [replies.dead_of(words) for _, words in rows]

    def failing(self) -> list[str]:
        """Returns the ids of open tasks of which an attempt has failed and that are not dead, in no order."""
        client, key = self._caller.client, self._caller.keys.failures
        return [replies.text(name) for name in self._caller.persist("failing", lambda: client.hkeys(key))]


class Monitor(RunState, PublishedWeights, Submissions):
    """Reads a run as Redis user `monitor`, for people and for roles that diagnose what holds the run up.

    It changes nothing. Its Lua functions are the read-only ones of `library/monitor.lua`.
    """

    ROLE: ClassVar["Role"] = "monitor"

    def __init__(self, caller: Caller, payloads: Payloads | None = None) -> None:
        super().__init__(caller)
        self._payloads = payloads or Payloads()
        self._events_from, self._refused = "-", dict[str, str]()

    def fleet(self) -> FleetStatus:
        """Returns who leads the run's fleet and what it wants."""
        client, keys = self._caller.client, self._caller.keys

        def look() -> list[Any]:
            pipe = client.pipeline(transaction=False)
            pipe.hgetall(keys.fleet)
            pipe.hgetall(keys.fleet_wanted)
            pipe.time()
            return answers(pipe.execute(raise_on_error=False))

        held, wanted, now = self._caller.persist("fleet", look)
        return replies.fleet_of(held, wanted, replies.milliseconds(now))

    def updates(self, after: Version = BASE) -> list[UpdateRecord]:
        """Returns what the updates after this version reported, by lineage and version; those of versions that a later
        lineage abandoned are among them.
        """
        found: list[UpdateRecord] = []
        while page := self._updates_after(found[-1].version if found else after):
            found += page
        return found

    def _updates_after(self, version: Version) -> list[UpdateRecord]:
        client, key = self._caller.client, self._caller.keys.updates
        first = "({}-{}".format(*version)
        rows = self._caller.persist("updates", lambda: client.xrange(key, first, "+", count=PAGE))
        return [replies.record_of(entry, words) for entry, words in rows]

    def newest_update(self) -> UpdateRecord | None:
        """Returns what the newest update reported; None before the first one."""
        client, key = self._caller.client, self._caller.keys.updates
        rows = self._caller.persist("newest_update", lambda: client.xrevrange(key, count=1))
        return replies.record_of(*rows[0]) if rows else None

    def failed_sets(self) -> dict[str, int]:
        """Returns the sets with chunks that cannot be read, and the number of these chunks, by name."""
        client: Any = self._caller.client
        keys = self._caller.keys
        names: list[bytes] = sorted(self._caller.persist("failed_sets", lambda: client.hkeys(keys.digests)))

        def read() -> Any:
            pipe = client.pipeline(transaction=False)
            for name in names:
                pipe.hget(keys.set(replies.text(name)), "failed")
            return pipe.execute()

        counts = self._caller.persist("failed_sets", read) if names else []
        found = zip(map(replies.text, names), (whole(count or b"0") for count in counts), strict=True)
        return {name: count for name, count in found if count > 0}

    def refused_sets(self) -> dict[str, str]:
        """Returns the sets of which events say that they were refused, and why, but those declared since.

        Only events that are newer than those of the last call are read.
        """
        client, key = self._caller.client, self._caller.keys.events
        rows: Any = self._caller.persist("refused_sets", lambda: client.xrange(key, self._events_from, "+"))
        for _, words in rows:
            if words.get(b"kind") == REFUSED.encode():
                name, _, why = replies.text(words[b"what"]).partition(" ")
                self._refused[name] = why
        self._events_from = f"({replies.text(rows[-1][0])}" if rows else self._events_from
        declared = self.digests() if self._refused else {}
        return {name: why for name, why in self._refused.items() if name not in declared}

    def digests(self) -> dict[str, str]:
        """Returns the digest of each set's prompts, by the set's name."""
        client: Any = self._caller.client
        words = self._caller.persist("digests", lambda: client.hgetall(self._caller.keys.digests))
        return {replies.text(name): replies.text(known).partition(" ")[0] for name, known in words.items()}

    def group_in_replay(self, task: str | None = None) -> Group | None:
        """Returns the group of `task` that is completed and not yet trained, for a person to inspect.

        Without `task`, it returns the newest such group of any task. None: there is no such group. Raises `CodecError`
        if the bytes are not a group.
        """
        rows = self._caller.persist("group_in_replay", lambda: self._entry_in_replay(task))
        return next((self._payloads.group(words) for _, words in rows), None)

    def _entry_in_replay(self, task: str | None) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Returns the newest entry, or the one of `task`, whose place `open` holds; none if there is no such entry."""
        client: Any = self._caller.client
        keys = self._caller.keys
        if task is None:
            return list(client.xrevrange(keys.replay, count=1))
        place = (client.hget(keys.open, task) or b"").split(b" ", 2)
        return list(client.xrange(keys.replay, place[1], place[1])) if place[0] == b"replay" else []

    def is_drained(self, task: str) -> bool:
        """Returns whether the group of `task` is in the learner's hands: drained, and not committed yet."""
        client: Any = self._caller.client
        keys = self._caller.keys
        place = self._caller.persist("is_drained", lambda: client.hget(keys.open, task)) or b""
        stream, _, rest = place.partition(b" ")
        member = b"%s %s" % (rest.partition(b" ")[0], task.encode())
        score = self._caller.persist("is_drained", lambda: client.zscore(keys.in_hand, member))
        return stream == b"replay" and score is not None

    def partial_group(self, task: str) -> PartialGroup | None:
        """Returns the partial rollout that a task's worker stored last, for a person to inspect; None if there is none.

        Raises `CodecError` if the bytes are not a partial rollout of this task.
        """
        words, elements = self._caller.persist("partial_group", lambda: self._stored_partial(task))
        return None if words is None else self._payloads.partials(task, replies.kept_words(words, elements))

    def _stored_partial(self, task: str) -> tuple[bytes | None, list[bytes]]:
        """Returns the task's value in `partials` and its segments, as they were at one instant.

        A monitor may not send MULTI, so the value is read before and after the segments: every move that changes these
        gives it another mark.
        """
        client: Any = self._caller.client
        keys = self._caller.keys
        for _ in range(READS_MAX):
            pipe = client.pipeline(transaction=False)
            pipe.hget(keys.partials, task).lrange(keys.segments(task), 0, -1).hget(keys.partials, task)
            before, elements, after = answers(pipe.execute(raise_on_error=False))
            if before == after:
                break
        return after, elements
