"""Whatever a worker's Redis user writes by hand, a learner and an honest worker finish, and the audit tells of it."""

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import redis

from echo_queue.queue import Heartbeat
from echo_queue.queue.acl import WORKER
from echo_queue.records import Group, PartialGroup, Published, Task, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of, partial_of
from tests.queue.test_acl import As, acting  # noqa: F401 the fixture
from tests.seed import session_seed
from tests.waiting import wait_until

PROMPTS = 24
SHORT = replace(RULES, lease_ms=50, max_attempts=10**6)
LAST_ID = "18446744073709551615-18446744073709551615"
RUINOUS = frozenset({"xdel", "xadd"})
"""Commands that can remove entries (one may trim): the run ends all the same, but without these prompts."""


class Vandal:
    """A worker's user that writes words drawn by lot into keys that it may write, with the commands that it may use."""

    def __init__(self, client: "redis.Redis", admin: Clients, lot: random.Random) -> None:
        self._client, self._admin, self._lot = client, admin, lot

    def write(self, times: int, *, spare: frozenset[str]) -> None:
        """Gives so many commands but those to `spare`; the server itself refuses many of their words."""
        grants = [grant[1:] for grant in WORKER if not grant[0].startswith("%R")]
        for _ in range(times):
            commands, names = self._lot.choice(grants)
            command = self._lot.choice(commands.split()).removeprefix("+")
            name = self._lot.choice(names).replace("*", self._lot.choice([self._id(), "a", "w1", "here:x"]))
            words = command.upper(), *self._arguments(command, self._admin.keys.prefix + name)
            if command not in spare:
                with suppress(redis.ResponseError):
                    self._client.execute_command(*words)

    def _arguments(self, command: str, key: str) -> list[Any]:
        draw, word, entry = self._lot.choice, self._word(), self._entry()
        number = draw(["0", "-1", "7", "1e300", "inf", "-inf", str(2**63 - 1)])
        behind: dict[str, list[Any]] = {
            "zadd": [number, word],
            "hset": [draw([self._id(), word]), self._word()],
            "hincrby": [draw(["completed", "leased", "x"]), str(2**63 - 1)],
            "setrange": [self._lot.randrange(PROMPTS), word],
            "bitfield": ["SET", "u8", f"#{self._lot.randrange(PROMPTS)}", number],
            "xadd": [
                *draw([(), (), ("MAXLEN", "0")]),
                *(draw(["*", "*", LAST_ID, "99999999999999-1"]), "id", self._id(), "late", word, "oldest", number),
                *(draw(["group", "ref"]), self._word()),
            ],
            "xclaim": ["workers", "vandal", "0", entry, *draw([(), ("LASTID", LAST_ID), ("IDLE", "0")])],
            "xack": ["workers", entry],
            "xdel": [entry],
            "ltrim": ["0", "0"],
            "lrem": ["0", word],
            "pexpire": ["1000"],
            "del": [],
        }
        if command == "xreadgroup":
            return ["GROUP", "workers", "vandal", "COUNT", "1", "STREAMS", key, ">"]
        return [key, *behind.get(command, [word])]

    def _id(self) -> str:
        return f"a/0/{self._lot.randrange(PROMPTS)}"

    def _entry(self) -> str:
        """An entry of tasks or retry, which a worker may read, or one that there is not."""
        key = self._lot.choice([self._admin.keys.tasks, self._admin.keys.retry])
        entries = [entry.decode() for entry, _ in self._admin.client.xrange(key)]
        return self._lot.choice([*entries, "1-1", LAST_ID])

    def _word(self) -> str:
        entry, task, draw = self._entry(), self._id(), self._lot.randrange
        return self._lot.choice(
            [
                *("", "x", "noise noise", "\x00\xff", "9" * 400, f"{'9' * 300} 1"),
                *(f"{entry} {task}", f"{entry}", f"tasks {entry}", f"retry {entry}", f"dead {entry}", "replay 0-0"),
                f"replay {entry} versions {draw(3)}..{draw(3)} lineage 0 by w1 attempt 0 in store",
                f"0 0 0 {draw(9)} {'ab' * 16} 1 5 {draw(2)}",
                f"token tasks {entry} what {entry}",
            ]
        )


class Run:
    """A learner and an honest worker, which take turns, beside a housekeeper."""

    def __init__(self, queue: Clients, worker: Clients) -> None:
        self.queue, self.worker, self.trained = queue, worker, list[str]()
        self.harness = QueueHarness(queue, SHORT, prompts=PROMPTS)
        self.version = self.harness.version
        self._over = threading.Event()
        self._failures: list[Exception] = []
        self._housekeeper = threading.Thread(target=self._keep_house, daemon=True)
        self._housekeeper.start()
        self.begin()

    def close(self) -> None:
        self._over.set()
        self._housekeeper.join()
        assert self._failures == []

    def _keep_house(self) -> None:
        while not self._over.wait(0.02):
            try:
                self.queue.reclaim()
                self.queue.status()
            except Exception as error:
                self._failures.append(error)
                return

    def begin(self) -> None:
        """A learner begins where the one before has committed, as after a restart."""
        lineage = self.queue.resume(self.version).lineage
        self._serve(Version(lineage, self.version.number))
        self.train(self.queue.pending(lineage))

    def turn(self) -> None:
        tasks = self.worker.lease("w1", self.version, 4).tasks
        self.worker.renew("w1", {task.id: self.version.number for task in tasks})
        partials = [PartialGroup(task.id, self.version.lineage, (partial_of(self.version.number),)) for task in tasks]
        self.worker.progress("w1", partials)
        self.worker.heartbeat("w1", Heartbeat("engine", self.version, "idle"))
        self.worker.complete("w1", [group_of(task, "w1", self.version) for task in tasks])
        self.train(self.queue.drain(self.version.lineage, 2).groups)

    def train(self, groups: Sequence[Group]) -> None:
        ids, number = [group.task for group in groups], self.version.number + 1
        self.queue.advance(self.version.lineage, number, len(ids), 8.0)
        self._serve(Version(self.version.lineage, number))
        self.trained += ids
        self.queue.commit(self.version.lineage, str(self.version), ids)

    def ends(self) -> bool:
        self.turn()
        return self.queue.finish(self.version.lineage)

    def _serve(self, version: Version) -> None:
        self.version = version
        self.queue.publish(version.lineage, Published(version, f"weights/{version}", "digest"))


def words_of(queue: Clients, task: Task) -> list[tuple[bool, tuple[Any, ...]]]:
    """Commands by hand of a worker's user, each of which stopped somebody for good, and whether the audit must tell.

    `task` is in somebody's hands; words about it leave no trace if its lease has run out meanwhile.
    """
    keys, stream = queue.keys, queue.keys.prefix + task.stream
    return [
        (True, ("ZADD", keys.ready, 0, "x")),
        (True, ("HSET", keys.open, "x", "replay 0-0")),
        (False, ("HSET", keys.open, task.id, "replay 0-0")),
        (False, ("HSET", keys.open, task.id, "replay 0-0 versions 0..0 lineage 0 by w1 attempt 0")),
        (False, ("XACK", stream, "workers", task.entry)),
        (False, ("XDEL", stream, task.entry)),
        (False, ("XCLAIM", stream, "workers", "w1", 0, task.entry, "LASTID", LAST_ID)),
        (True, ("XADD", keys.replay, LAST_ID, "id", "x")),
        (False, ("XADD", keys.replay, "MAXLEN", 0, "*", "id", "x")),
        (False, ("HINCRBY", keys.tallies, "completed", 2**63 - 1)),
        (False, ("HSET", f"{keys.prefix}buckets:a", 1, f"{'9' * 400} {'9' * 400}")),
    ]


@pytest.mark.parametrize("number", range(11))
def test_one_word_stops_nobody(queue: Clients, acting: As, number: int) -> None:  # noqa: F811
    run = Run(queue, Clients(acting("worker").client, queue.run, deadline_s=20.0))
    try:
        for _ in range(2):  # over a restart of the learner
            (task,) = run.worker.lease("w2", run.version, 1).tasks
            told, word = words_of(queue, task)[number]
            with suppress(redis.ResponseError):  # no second entry has the last id
                run.worker.client.execute_command(*word)
            run.turn()
            run.begin()
        wait_until(run.ends, "the end of the run")
    finally:
        run.close()
    assert "XDEL" in word or "MAXLEN" in word or set(run.trained) == {f"a/0/{index}" for index in range(PROMPTS)}
    assert not (told and queue.audit().ok)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("spare", [RUINOUS, frozenset()], ids=["writes", "writes and removes"])
def test_a_run_ends_whatever_a_workers_user_writes(
    queue: Clients,
    acting: As,  # noqa: F811
    number: int,
    spare: frozenset[str],
) -> None:
    lot = random.Random(f"{session_seed()} {number} {len(spare)}")
    worker = Clients(acting("worker").client, queue.run, deadline_s=20.0)
    run = Run(queue, worker)
    vandal = Vandal(worker.client, queue, lot)
    try:
        for _ in range(6):
            vandal.write(25, spare=spare)
            run.turn()
            if lot.random() < 0.3:
                run.begin()
        wait_until(run.ends, "the end of the run")
    finally:
        run.close()
    if spare:
        assert set(run.trained) == {f"a/0/{index}" for index in range(PROMPTS)}
    assert len(set(run.trained)) == len(run.trained), "nothing twice"
    audit = queue.audit()
    assert audit.ok or audit.forged or audit.lost or audit.misplaced or audit.unlisted or audit.difference
