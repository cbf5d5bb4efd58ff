"""The queue client of the learner: the moves of `library/learner.lua`.

- A client holds one lineage, the one it began (`resume`), and numbers its moves. A server that has forgotten any of
  them refuses the next one (`SetBackError`). A client whose lineage is not the newest is fenced (`FencedError`).
- One thread makes all numbered moves (`drain`, `skip`, `advance`, `commit`, `uncommit`, `restore`); any thread may make
  the others.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import redis

from echo_queue.errors import Problem
from echo_queue.queue import replies
from echo_queue.queue.caller import Caller, answers
from echo_queue.queue.events import Arrivals
from echo_queue.queue.lineage_client import LineageClient
from echo_queue.queue.payloads import Payloads
from echo_queue.queue.run_rules import RunRules, words_of
from echo_queue.queue.settled import bits_of
from echo_queue.queue.types import Drained, Resumed, RunKeys, UpdateRecord
from echo_queue.records import BASE, Group, Published, Version
from echo_queue.records.group_codec import CodecError

NO_SETS: Mapping[str, str] = {}
FETCH_STEP = 32
"""The groups that one request reads: the server answers others between requests."""
RESTORE_MAX_BYTES = 1 << 23
"""The bytes of one `restore`, of which each is for eight prompts: it then takes some 20 ms of the server."""
SUSPEND_STEP = 128
"""The number of tasks to which one call of `suspend` gives their attempts back."""
COMMIT_STEP = 128
"""The ids that one step of `commit` or `uncommit` moves: a server of a fleet is then held for some 6 ms."""


class LearnerQueue(LineageClient, Arrivals):
    """Drains groups, commits trained ones and publishes weights as Redis user `learner`: `library/learner.lua`."""

    def __init__(self, caller: Caller, payloads: Payloads | None = None, lineage: int = 0) -> None:
        super().__init__(caller, payloads, lineage)
        self._turn: int | None = None
        self._waiting: list[tuple[Any, ...]] = []

    def resume(
        self, rules: RunRules, begin: Version = BASE, floor: int = 0, sets: Mapping[str, str] = NO_SETS
    ) -> Resumed:
        """Begins a new lineage, above `floor`, at the checkpoint of `begin`; every earlier learner is fenced.

        Tasks in flight by versions above it go back (`cancel`). `rules` are the run's from now on. `sets`: the digests
        of the sets that this checkpoint or an ancestor holds ids of (`set_digests`); other prompts are refused under
        their names.

        The caller then makes the queue follow its checkpoints (`restore`, `commit`, `uncommit`) before it drains. If no
        weights are published afterwards, the caller publishes these first. Raises `PromptError`, and changes nothing,
        if other prompts were declared under such a name before anybody could refuse them.
        """
        words = words_of(rules)
        known = [word for pair in sets.items() for word in pair]
        answer = self._caller.call("resume", *begin, floor, uuid.uuid4().hex, len(words), *words, *known)
        lineage, committed = answer
        self._lineage, self._turn = int(lineage), 0
        while self._cancel():
            pass
        name, _, settled = replies.text(committed).partition(" ")
        return Resumed(self._lineage, name or None, int(settled) if settled else None)

    def _cancel(self) -> int:
        """Sends some of the tasks in flight back that the lineage's beginning left behind. Returns how many."""
        return int(self._caller.call("cancel", self._lineage))

    def pending(self) -> tuple[Group, ...]:
        """Returns the groups that were drained and not committed, oldest first. Call it once, right after `resume`.

        Those that may no longer be trained go back.
        """
        places: list[tuple[bytes, bytes]] = []
        looked = 1
        while looked:
            rows, refs, looked = self._caller.call("pending", self._lineage, len(places))
            self._payloads.discard(refs)
            places += [(row[0], row[1]) for row in rows]
        return self._groups(places)[0]

    def drain(self, need: int) -> Drained:
        """Takes at most `need` admissible groups, the oldest versions first.

        Groups that are too old go back in the same call. A group that cannot be read is buried with the reason; one
        whose object is missing is generated again.
        """
        drained, more = self._drain_step(need)
        while more and len(drained.groups) < need:
            step, more = self._drain_step(need - len(drained.groups))
            drained = drained.then(step)
        return drained

    def _drain_step(self, need: int) -> tuple[Drained, bool]:
        """Makes one step of a drain. Returns also whether there is more to hand out or to send back."""
        reply = self._numbered("drain", need)
        *_, more, refs = reply
        self._payloads.discard(refs)
        groups, malformed = self._groups([(row[0], row[1]) for row in reply[0]])
        return replies.drained_of(reply, groups, malformed), bool(more)

    def advance(self, version: int, trained: int, window: float) -> int:
        """Sets the learner's version after an update on `trained` groups, those that were skipped not counted.

        Returns how many groups in flight were cancelled. Where these are many, the housekeeper cancels the others
        (`Operator.reclaim`).
        """
        return int(self._numbered("advance", version, trained, window))

    def skip(self, groups: int) -> int:
        """Counts so many drained groups, which teach nothing, as trained for bound and pace, ahead of their update.

        Other prompts are admitted in their place. Returns how many groups are trained for the queue and not committed.
        """
        return int(self._numbered("skip", groups))

    def commit(self, checkpoint: str, task_ids: Sequence[str], settled: int = 0, at_once: int = COMMIT_STEP) -> int:
        """Moves tasks to trained, wherever they are. Call it once `checkpoint` is durable.

        The checkpoint holds these tasks and its parent does not. It goes in steps of `at_once` ids, each of which says
        how far the checkpoint is committed: whoever resumes goes on from there. The first `settled` ids were moved
        before. Returns how many were in the queue; tasks that Redis has forgotten count as trained when they are
        admitted.
        """
        moved, refs = 0, list[bytes]()
        for start in range(settled, max(len(task_ids), settled + 1), at_once):
            end = start + at_once
            standing = checkpoint if end >= len(task_ids) else _standing(checkpoint, end)
            in_queue, in_store = self._numbered("commit", standing, *task_ids[start:end])
            moved, refs = moved + int(in_queue), [*refs, *in_store]
        self._payloads.discard(refs)
        return moved

    def restore(self, checkpoint: str, task_ids: Iterable[str]) -> bool:
        """Tells a queue that has forgotten everything what `checkpoint` and its ancestors hold: all that is trained.

        These tasks count as trained when they would be admitted. Returns False, and changes nothing, if the queue knows
        of a task that is trained or was admitted, or if the prompts are more than one call takes: `commit` them then.
        """
        bits = bits_of(task_ids, RESTORE_MAX_BYTES)
        if bits is None:
            return False
        return bool(self._numbered("restore", checkpoint, *chain.from_iterable(bits.items())))

    def uncommit(
        self,
        checkpoint: str,
        parent: str,
        task_ids: Sequence[str],
        settled: int | None = None,
        at_once: int = COMMIT_STEP,
    ) -> int:
        """Undoes `commit` for the queue's newest checkpoint if no surviving history holds it: trained → backlog.

        It goes in steps as well, the newest ids first. `settled`: how many of the ids are committed; None: all. Returns
        how many went back to the backlog.
        """
        end, undone = len(task_ids) if settled is None else settled, 0
        standing = checkpoint if settled is None else _standing(checkpoint, settled)
        for start in range((max(end, 1) - 1) // at_once * at_once, -1, -at_once):
            before = _standing(checkpoint, start) if start else parent
            undone += int(self._numbered("uncommit", standing, before, *task_ids[start:end]))
            standing, end = before, start
        return undone

    def publish_keys(self, keys: RunKeys) -> None:
        """Publishes the keys by which workers trust weights. They do not change during a lineage."""
        words = keys.public_key, keys.token_secret.hex(), keys.chunk_key.hex()
        self._caller.call("publish_keys", self._lineage, *words)

    def announce(self, version: Version, route: str, place: int, document: bytes) -> bool:
        """Announces, by its signed document, a stored part of a route to `version`, which is not published yet.

        Parts are announced in order, and replace those of another route. Returns False if the version is published or
        the document too large.
        """
        self._require_own(version)
        return bool(self._caller.call("announce", self._lineage, version.number, route, place, document))

    def publish(self, published: Published) -> bool:
        """Moves the pointer to the newest weights. Returns False if it is already at this version or a newer one."""
        self._require_own(published.version)
        words = published.version.number, published.manifest, published.digest
        return bool(self._caller.call("publish", self._lineage, *words))

    def record(self, records: Sequence[UpdateRecord]) -> None:
        """Keeps what updates report about themselves, by ascending versions, for everyone who may read the run.

        It goes with the next numbered move, so that it costs no write to the disk of its own. The newest 10,000 are
        kept, of at most 16 KiB each; one that is there already, or is older than one that is there, changes nothing.
        """
        for one in records:
            self._later("record", self._lineage, "{}-{}".format(*one.version), one.release, one.task, one.line)

    def suspend(self, worker: str, reason: str, task_ids: Sequence[str] = ()) -> int:
        """Lets `worker` lease and complete nothing more, until the next lineage or `Operator.reinstate`.

        What it holds is handed back. `task_ids`, of which it sent bad groups, get all attempts again, also if they are
        dead by now. Returns how many did.
        """
        steps = [task_ids[first : first + SUSPEND_STEP] for first in range(0, max(1, len(task_ids)), SUSPEND_STEP)]
        return sum(int(self._caller.call("suspend", self._lineage, worker, reason, *ids)) for ids in steps)

    def set_digests(self, names: Sequence[str]) -> dict[str, str]:
        """Returns the digest of each set's prompts, and behind it those of earlier declarations; empty: not known."""
        digests = self._caller.call("set_digests", self._lineage, *names) if names else []
        return dict(zip(names, map(replies.text, digests), strict=True))

    def has_room(self, size: int) -> bool:
        """Returns whether the server would take a completion of `size` bytes now; False if it is at `maxmemory`."""
        answer = self._caller.move("probe_room", [("probe_room", bytes(size))], size, optional=True)[0]
        return not isinstance(answer, redis.OutOfMemoryError)

    def finish(self, force: bool = False) -> bool:
        """Marks the run finished until new work arrives; workers learn it from `Lease.finished`.

        Returns False if there is something left to train, unless `force` is set, which finishes the run all the same.
        """
        return bool(self._caller.call("finish", self._lineage, int(force)))

    def _require_own(self, version: Version) -> None:
        if version.lineage != self._lineage:
            raise ValueError(f"lineage {self._lineage} cannot publish {version}")

    def _numbered(self, move: str, *args: Any) -> Any:
        """Makes a numbered move. A client that did not call `resume` itself continues from the number in Redis."""
        if self._turn is None:
            client, key = self._caller.client, self._caller.keys.state
            known = self._caller.persist("turn", lambda: client.hget(key, "turn"))
            self._turn = int(known.split()[0]) if known else 0
        words = (self._lineage, self._turn + 1, *args)
        answer = self._caller.move(move, [(move, *words), *self._waiting], words)[0]
        self._turn += 1
        self._waiting.clear()
        return answer

    def _later(self, move: str, *args: Any) -> None:
        """Makes a move together with the next numbered one, in one round trip."""
        self._waiting.append((move, *args))

    def _groups(self, places: list[tuple[bytes, bytes]]) -> tuple[tuple[Group, ...], int]:
        """Returns the groups at these (task id, entry) places in replay, and how many bad ones it rejected."""
        groups, malformed = [], 0
        for (task, entry), rows in self._fetched(places):
            if not rows:
                what = f"entry {replies.text(entry)} of {replies.text(task)} vanished"
                fix = "was the stream trimmed? see `echo-queue audit`"
                gone = CodecError(Problem(self._caller.keys.replay, what, fix))
                malformed += self._reject_group(task, entry, gone) is not None
                continue
            group, rejected = self._group_or_rejected(task, entry, rows[0][1])
            groups += [group] if group else []
            malformed += rejected
        return tuple(groups), malformed

    def _fetched(self, places: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[tuple[bytes, bytes], Any]]:
        """Yields each (task id, entry) place with its rows in replay, none or one."""

        def fetch(some: Sequence[tuple[bytes, bytes]]) -> list[Any]:
            pipe = self._caller.client.pipeline(transaction=False)
            for _, entry in some:
                pipe.xrange(self._caller.keys.replay, entry, entry)
            return answers(pipe.execute(raise_on_error=False))

        for start in range(0, len(places), FETCH_STEP):
            some = places[start : start + FETCH_STEP]
            yield from zip(some, self._caller.persist("fetch", partial(fetch, some), some), strict=True)


def _standing(checkpoint: str, settled: int) -> str:
    """Returns how the queue names a checkpoint of whose ids only the first `settled` are committed."""
    return f"{checkpoint} {settled}"
