"""Each role's user can do its part, and nothing that would let it harm another's."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from echo_queue.cli.inspect.show import find
from echo_queue.connections.secrets import ROLES, Role
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import (
    Chunk,
    FleetQueue,
    Heartbeat,
    Outcome,
    Peer,
    PromptSet,
    RunKeys,
    UpdateRecord,
    UpdateRecords,
    WorkerOrder,
)
from echo_queue.queue.acl import CONTROLLER_CALLS, SUBMITTER_CALLS, WORKER_CALLS, rules
from echo_queue.queue.keys import Keys
from echo_queue.records import PartialGroup, PromptShard, Published, Task, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of, partial_of
from tests.queue.test_clients import registered
from tests.waiting import wait_until

CELERY = "eq-celery"
TRUST = RunKeys("ab" * 32, b"tokens", b"chunks")
As = Callable[[Role], Clients]
CALLS: dict[Role, tuple[str, ...]] = {
    "worker": WORKER_CALLS,
    "submitter": SUBMITTER_CALLS,
    "controller": CONTROLLER_CALLS,
    "monitor": (),
    "celery": (),
}
"""The moves of each role that may not make all."""


@pytest.fixture
def acting(redis_server: RedisServer, queue: Clients, run_name: str) -> Iterator[As]:
    """The queue as seen by the user of a role."""
    admin: Any = queue.client
    for role in ROLES:
        words = ["on", ">secret", *_words(rules(role, run_name, CELERY))]
        admin.execute_command("ACL", "SETUSER", f"{run_name}-{role}", "reset", *words)
    clients = {
        role: redis.Redis(port=redis_server.port, username=f"{run_name}-{role}", password="secret", protocol=2)
        for role in ROLES
    }
    yield lambda role: Clients(clients[role], run_name, deadline_s=0.5)
    for client in clients.values():
        client.close()
    admin.execute_command("ACL", "DELUSER", *(f"{run_name}-{role}" for role in ROLES))


def _words(line: str) -> list[str]:
    """Splits rules at spaces, but not inside a selector's parentheses."""
    words: list[str] = []
    for word in line.split(" "):
        if words and words[-1].startswith("(") and not words[-1].endswith(")"):
            words[-1] += " " + word
        else:
            words.append(word)
    return words


def _refused(what: Callable[[], Any]) -> bool:
    try:
        what()
    except NoPermissionError:
        return True
    except ServiceError as error:
        return "may not do that" in str(error)
    return False


@pytest.mark.parametrize("role", CALLS)
def test_a_role_makes_its_own_moves_and_no_others(role: Role, queue: Clients, acting: As) -> None:
    QueueHarness(queue)
    before, client = queue.audit(), acting(role).client
    others = [f"eq1_{move}" for move in sorted(set(registered()) - set(CALLS[role]))]
    assert [name for name in others if not _refused(partial(client.fcall, name, 1, queue.keys.prefix))] == []
    assert queue.audit() == before


def test_a_submitter_admits_what_is_trained_already_and_what_is_trained_again(queue: Clients, acting: As) -> None:
    submitter, learner = acting("submitter"), acting("learner")
    learner.configure(RULES)
    lineage, held = learner.resume().lineage, ["a/0/0", "a/0/1"]
    learner.publish(lineage, Published(Version(lineage, 0), "manifest", "digest"))
    assert learner.restore(lineage, "0001/00000001", held)
    assert submitter.declare(PromptSet("a", "source"), [Chunk(0, 0, 2)])
    assert submitter.submit("a", 0, PromptShard("shard", 0, 2))
    assert queue.audit().trained == 2
    assert learner.uncommit(lineage, "0001/00000001", "", held) == 2
    assert submitter.admit() == 2
    assert (queue.audit().ok, queue.audit().tasks) == (True, 2)


def test_every_role_can_do_its_part(queue: Clients, acting: As) -> None:
    submitter, worker, learner, monitor = (acting(role) for role in ("submitter", "worker", "learner", "monitor"))
    learner.configure(RULES)
    lineage = learner.resume().lineage
    version = Version(lineage, 0)
    learner.publish(lineage, Published(version, "manifest", "digest"))
    assert not worker.lease("idle", version, 1).tasks

    chunk = Chunk(0, 0, 9)
    assert submitter.declare(PromptSet("a", "source", order="shuffled"), [chunk])
    assert submitter.reject("a", chunk, "unreadable")
    assert submitter.submit("a", 0, PromptShard("shard", 0, 9), bytes(range(1, 10)))
    assert submitter.submission_status("a")
    assert submitter.submission_counts("a")
    assert submitter.unserved_sets() == ["a"]
    assert submitter.waiting_chunk("a", 0) is None
    assert submitter.admit() == 0

    tasks = worker.lease("w1", version, 4).tasks
    assert worker.renew("w1", {task.id: 0 for task in tasks}) == []
    worker.heartbeat("w1", Heartbeat("engine", version, "idle"))
    assert worker.release("w1", [tasks[3].id]) == 1
    assert worker.fail("w1", tasks[2].id, "reason")
    assert worker.complete("w1", [group_of(task, "w1", version) for task in tasks[:2]]) == [Outcome.accepted] * 2
    worker.join(Peer("w1", "here", "127.0.0.1:1", rate=1000), "0001.00000000/full")
    assert worker.join(Peer("w2", "here", "", rate=1000, leaf="price"), "0001.00000000/full").upstreams
    assert worker.join(Peer("w3", "there", "", leaf="price"), "0001.00000000/full").upstreams == ()
    assert worker.report("w2", "w1", "bad") == 1
    worker.withdraw("w1")
    worker.wait_for_weights("0-0", 0.1)
    assert worker.wait_for_work("idle", 5.0)
    learner.wait_for_groups("0-0", 0.1)
    assert worker.published()
    learner.publish_keys(lineage, TRUST)
    assert worker.run_keys() == learner.run_keys() == TRUST

    assert learner.reclaim().failed == 1
    ids = [group.task for group in learner.drain(lineage, 2).groups]
    assert len(learner.pending(lineage)) == 2
    learner.advance(lineage, 1, 2, 2.0)
    assert learner.commit(lineage, "1/1", ids) == 2
    assert learner.bury(tasks[2].id, "why")
    assert learner.dead()
    assert worker.complete("w2", [group_of(tasks[2], "w2", version)]) == [Outcome.dead]
    assert learner.set_digests(lineage, ["a"])["a"]
    assert learner.revive([tasks[2].id]) == 1
    assert learner.finish(lineage, force=True)

    assert monitor.audit().ok
    assert monitor.status().workers[0].name == "w1"
    assert monitor.dead() == []
    assert monitor.published()
    assert learner.unserved_sets() == monitor.unserved_sets() == ["a"]  # for whoever asks who holds the run up
    assert learner.submission_status("a") == monitor.submission_status("a") == submitter.submission_status("a")
    acting("admin").install()


def test_submitters_admit_and_workers_complete_by_a_curriculum(queue: Clients, acting: As) -> None:
    submitter, worker, learner = (acting(role) for role in ("submitter", "worker", "learner"))
    learner.configure(replace(RULES, curriculum="mopps"))
    version = Version(learner.resume().lineage, 0)
    learner.publish(version.lineage, Published(version, "manifest", "digest"))
    assert submitter.declare(PromptSet("a", "source"), [Chunk(0, 0, 20)])
    assert submitter.submit("a", 0, PromptShard("shard", 0, 20))
    assert queue.client.zcard(queue.keys.candidates("a"))
    tasks = worker.lease("w1", version, 2).tasks
    assert worker.complete("w1", [group_of(task, "w1", version) for task in tasks]) == [Outcome.accepted] * 2
    assert queue.client.exists(queue.keys.successes("a"))
    assert learner.drain(version.lineage, 1).groups
    assert learner.skip(version.lineage, 1) == 1


def test_a_learner_records_its_updates_and_a_monitor_reads_them(queue: Clients, acting: As) -> None:
    QueueHarness(queue)
    record = UpdateRecord(Version(1, 1), "0.1.0", "a/0/0", b"{}")
    learner = acting("learner")
    learner.record(0, [record])
    learner.advance(0, 0, 0, 1.0)
    assert acting("monitor").updates() == [acting("monitor").newest_update()] == [record]
    records = UpdateRecords(acting("monitor").caller)
    assert (records.newest(2), records.recorded()) == ([record], 1)
    assert _refused(acting("submitter").updates)


def test_a_worker_keeps_continues_and_discards_partials_and_leaves(queue: Clients, acting: As) -> None:
    harness = QueueHarness(queue)
    worker = acting("worker")
    tasks = worker.lease("w1", harness.version, 2).tasks
    assert worker.progress("w1", [PartialGroup(task.id, 0, (partial_of(0),)) for task in tasks]) == []
    harness.expire()
    assert set(worker.lease("w2", harness.version, 2).partials) == {task.id for task in tasks}
    assert worker.discard("w2", [tasks[0].id]) == 1
    assert worker.complete("w2", [group_of(tasks[1], "w2", harness.version)]) == [Outcome.accepted]
    assert acting("monitor").client.hkeys(queue.keys.partials) == []
    worker.heartbeat("w2", Heartbeat("engine", harness.version, "idle"))
    worker.leave("w2")
    assert not queue.client.exists(queue.keys.worker("w2"))


def test_a_monitor_shows_a_task_wherever_it_is(queue: Clients, acting: As, object_store: ObjectStore) -> None:
    harness = QueueHarness(queue)
    made, begun, dead, idle = harness.lease(4)
    harness.complete((made,))
    assert queue.progress("w1", [PartialGroup(begun.id, 0, (partial_of(0),))]) == []
    queue.bury(dead.id, "no such column")
    monitor = acting("monitor")
    found = {task.id: find(monitor, object_store, task.id) for task in (made, begun, dead, idle)}
    told = [group and group.where.partition(" ")[0] for group in found.values()]
    assert told == ["complete,", "in", "dead:", None]
    assert find(monitor, object_store, "a/0/999") is None


def test_workers_and_monitors_read_what_the_learner_announces(queue: Clients, acting: As) -> None:
    QueueHarness(queue)
    assert acting("learner").announce(0, Version(0, 1), "0000.00000001/full", 0, b"document")
    for role in ("worker", "monitor"):
        announced = acting(role).latest_weights().announced
        assert announced and acting(role).announced_parts(announced, 0) == {0: b"document"}


def test_a_workers_late_answer_is_refused_without_a_right_too_few(queue: Clients, acting: As) -> None:
    harness = QueueHarness(queue, RULES)
    worker = acting("worker")
    task = worker.lease("w1", Version(0, 0), 1).tasks[0]
    late = group_of(task, "w1", Version(0, 0))
    queue.renew("w1", {task.id: 5})
    for version in (1, 2):
        queue.advance(0, version, 0, 2.0)
    assert worker.complete("w1", [late]) == [Outcome.late]
    harness.check()


def test_a_worker_cannot_submit_forge_read_others_work_or_publish(queue: Clients, acting: As) -> None:
    harness = QueueHarness(queue)
    harness.complete(harness.lease(2))
    keys, worker = queue.keys, acting("worker")
    entry: Any = {"id": "a/0/0"}
    forbidden: list[Callable[[], Any]] = [
        lambda: worker.client.hset(keys.coming, "route", "mine"),
        lambda: worker.client.delete(keys.coming),
        lambda: worker.client.xadd(keys.updates, entry),
        lambda: worker.client.hset(keys.run_keys, "public_key", "mine"),
        worker.install,
        *[lambda key=key: worker.client.xadd(key, entry) for key in (keys.tasks, keys.retry, keys.dead)],
        lambda: worker.client.xrange(keys.replay),
        lambda: worker.client.xread({keys.replay: "0"}),
        lambda: worker.client.hset(keys.published, "number", 9),
        lambda: worker.client.delete(keys.tasks),
        worker.client.flushall,
        lambda: worker.client.config_get("*"),
        lambda: worker.client.eval("return 1", 0),
        lambda: worker.client.set("elsewhere", 1),
        *[partial(worker.client.execute_command, *command) for command in _hostile(keys)],
    ]
    before = queue.audit()
    assert [number for number, attempt in enumerate(forbidden) if not _refused(attempt)] == []
    assert queue.audit() == before
    assert queue.published() == Published(Version(0, 0), "weights/0.0", "digest")


def test_a_worker_of_some_names_makes_no_move_under_another(queue: Clients, acting: As, run_name: str) -> None:
    """What an invited worker holds is its own; so is what it says."""
    harness = QueueHarness(queue, RULES)
    words = _words(rules("worker", run_name, CELERY, workers="mine-*"))
    queue.client.execute_command("ACL", "SETUSER", f"{run_name}-worker", "resetkeys", "clearselectors", *words)
    worker = acting("worker")
    (own,), (other,) = harness.lease(1, "mine-0"), harness.lease(1, "w1")
    route = "0000.00000001/full"

    def moves(name: str, task: Task) -> list[Callable[[], Any]]:
        partial_group = PartialGroup(task.id, 0, (partial_of(0), partial_of(0)))
        group = group_of(task, name, harness.version)
        return [
            lambda: worker.heartbeat(name, Heartbeat("engine", harness.version, "idle")),
            lambda: worker.renew(name, {task.id: 0}),
            lambda: worker.progress(name, [partial_group]),
            lambda: worker.discard(name, [task.id]),
            lambda: worker.join(Peer(name, "here", "127.0.0.1:1"), route),
            lambda: worker.report(name, "w9", "bad"),
            lambda: worker.withdraw(name),
            lambda: worker.complete(name, [group]),
            lambda: worker.release(name, [task.id]),
            lambda: worker.fail(name, task.id, "spite"),
            lambda: worker.lease(name, harness.version, 1),
            lambda: worker.leave(name),
        ]

    before = queue.client.dump(queue.keys.replay), queue.client.dump(queue.keys.leases)
    assert [_refused(one) for one in moves("w1", other)] == [True] * 12
    assert (queue.client.dump(queue.keys.replay), queue.client.dump(queue.keys.leases)) == before
    assert _refused(lambda: worker.client.xadd(queue.keys.sent("w1"), {"g": ""}))
    assert [_refused(one) for one in moves("mine-0", own)] == [False] * 12
    harness.check()


def test_only_learner_and_workers_see_the_runs_secrets(queue: Clients, acting: As) -> None:
    QueueHarness(queue)
    queue.publish_keys(0, TRUST)
    roles: list[Role] = ["submitter", "monitor", "celery"]
    assert all(_refused(acting(role).run_keys) for role in roles)


def _hostile(keys: Keys) -> list[list[str]]:
    """Commands with which a worker's user could see, forge or stop what is not its own."""
    commands = [
        *(f"FCALL eq1_{name} 1 {keys.tasks}" for name in ("lease", "complete", "heartbeat")),
        *(f"FCALL eq1_{name} 0" for name in ("drain", "bury", "reject_group")),
        f"FCALL_RO eq1_status 1 {keys.prefix}",
        "FUNCTION LIST",
        "FUNCTION DUMP",
        "FUNCTION FLUSH",
        "FUNCTION DELETE echo_queue_1",
        "FUNCTION LOAD REPLACE #!lua",
        "SCRIPT LOAD x",
        "SCRIPT FLUSH",
        "EVAL_RO x 0",
        "KEYS *",
        "SCAN 0",
        "RANDOMKEY",
        "DBSIZE",
        "INFO",
        "CONFIG SET appendonly no",
        "ACL WHOAMI",
        "ACL LIST",
        "ACL SETUSER default on",
        "CLIENT LIST",
        "CLIENT PAUSE 1",
        "MONITOR",
        "SHUTDOWN",
        "REPLICAOF 127.0.0.1 1",
        "BGREWRITEAOF",
        "SWAPDB 0 1",
        "SUBSCRIBE x",
        "PSUBSCRIBE *",
        "PUBLISH x y",
        f"COPY {keys.tasks} {keys.replay}",
        f"RENAME {keys.tasks} {keys.prefix}token:w",
        f"RESTORE {keys.prefix}token:w 0 x",
        f"DUMP {keys.replay}",
        f"MEMORY USAGE {keys.replay}",
        f"OBJECT ENCODING {keys.replay}",
        f"XINFO STREAM {keys.replay} FULL",
        f"XRANGE {keys.replay} - +",
        f"XREADGROUP GROUP learner w STREAMS {keys.replay} >",
        f"XDEL {keys.replay} 0-1",
        f"XTRIM {keys.replay} MAXLEN 0",
        f"XTRIM {keys.tasks} MAXLEN 0",
        f"XGROUP DESTROY {keys.tasks} workers",
        f"XGROUP DELCONSUMER {keys.tasks} workers w1",
        f"XSETID {keys.tasks} 9-9",
        f"HDEL {keys.open} a/0/0",
        f"HSET {keys.state} v 99",
        f"HSET {keys.rules} s 99",
        f"HINCRBY {keys.stats} trained 1",
        f"HINCRBY {keys.stats} submitted 1",
        f"HGETALL {keys.stats}",
        f"HSET {keys.forks} 1 0",
        f"ZADD {keys.backlog} 0 mine",
        f"LPUSH {keys.redo} a/0/0",
        f"HSET {keys.settled} a/0 1",
        f"SETBIT {keys.settled_bits('a/0')} 0 1",
        f"ZREM {keys.ready} x",
        f"ZADD {keys.in_hand} 0 x",
        f"HGETALL {keys.failures}",
        f"HGETALL {keys.worker('w2')}",
        f"DEL {keys.worker('w2')}",
        f"SET {keys.drained} x",
        "GET eq:{other}:state",
    ]
    return [command.split(" ") for command in commands]


def test_a_controller_leads_orders_and_reads_and_does_no_more(queue: Clients, acting: As) -> None:
    harness = QueueHarness(queue)
    harness.complete(harness.lease(2))
    queue.publish_keys(0, TRUST)
    admitted = acting("controller")
    controller = FleetQueue(admitted.caller, "c1")
    assert controller.lead(60.0).number == 1
    controller.plan(b"plan", {"spot": 2})
    controller.order(WorkerOrder("rest"), ["w1"])
    assert acting("worker").heartbeat("w1", Heartbeat("engine", harness.version, "idle")) == WorkerOrder("rest")
    controller.pause(paused=True)
    assert controller.status().workers[0].name == "w1"
    assert controller.audit().ok
    fleets = [acting(role).fleet() for role in ("monitor", "controller")]
    assert [fleet.leader for fleet in fleets] == ["c1", "c1"]
    controller.resign()
    keys, client = queue.keys, admitted.client
    forbidden: list[Callable[[], Any]] = [
        admitted.run_keys,
        admitted.install,
        lambda: client.hset(keys.state, "v", 9),
        lambda: client.hset(keys.worker("w1"), "state", "mine"),
        lambda: client.zrem(keys.workers, "w1"),
        lambda: client.delete(keys.order("w1")),
        lambda: client.xadd(keys.tasks, {"id": "a/0/0"}),
        lambda: client.set("elsewhere", 1),
    ]
    assert [number for number, attempt in enumerate(forbidden) if not _refused(attempt)] == []


def test_nobody_but_admin_changes_the_functions_or_looks_at_other_keys(queue: Clients, acting: As) -> None:
    """A learner would run, with its own rights, what another role had put in the place of a function."""
    commands = [
        *("FUNCTION FLUSH", "FUNCTION DELETE echo_queue_1", "FUNCTION LOAD REPLACE x", "FUNCTION RESTORE x"),
        *("SCAN 0", "RANDOMKEY", "DBSIZE", "KEYS *", "FLUSHALL", "FLUSHDB", "SWAPDB 0 1"),
        *("CONFIG GET *", "ACL LIST", "MONITOR", "SCRIPT FLUSH"),
    ]
    for role in set(ROLES) - {"admin"}:
        client: Any = acting(role).client
        for command in commands:
            assert _refused(partial(client.execute_command, *command.split(" "))), (role, command)
    assert queue.client.function_list(library="echo_queue_1")


def tampering(keys: Keys) -> list[tuple[str, list[str]]]:
    """A worker's user can still do this by hand, because completing needs each single right."""
    return [
        ("a task deleted", ["XDEL", keys.tasks, "{task}"]),
        ("an entry added to replay", ["XADD", keys.replay, "*", "id", "a/0/0"]),
        ("an id made up", ["HSET", keys.open, "a/0/99", "tasks 0-1"]),
        ("a lease forgotten", ["ZREM", keys.in_flight, "a/0/0"]),
        ("a lease acknowledged", ["XACK", keys.tasks, "workers", "{task}"]),
        ("a lease that never runs out", ["ZREM", keys.leases, "a/0/0"]),
        ("a group that is nowhere", ["ZADD", keys.ready, "0", "x"]),
    ]


@pytest.mark.parametrize("number", range(7))
def test_the_audit_shows_what_a_worker_can_still_tamper_with(queue: Clients, acting: As, number: int) -> None:
    harness = QueueHarness(queue)
    (task,) = harness.lease(1)
    what, command = tampering(queue.keys)[number]
    client: Any = acting("worker").client
    client.execute_command(*(word.replace("{task}", task.entry) for word in command))
    assert not queue.audit().ok, what


def test_a_worker_cannot_hide_what_it_deleted_in_the_counters(queue: Clients, acting: As) -> None:
    harness = QueueHarness(queue)
    (task,) = harness.lease(1)
    client: Any = acting("worker").client
    client.xdel(queue.keys.tasks, task.entry)
    for name in ("trained", "submitted", "lost"):
        client.hincrby(queue.keys.tallies, name, 1)
    audit, status = queue.audit(), queue.status()
    assert (audit.ok, audit.difference, status.submitted, status.trained) == (False, 1, 40, 0)


def test_a_monitor_reads_with_redis_cli_commands_and_changes_nothing(queue: Clients, acting: As) -> None:
    QueueHarness(queue)
    keys = queue.keys
    monitor: Any = acting("monitor").client
    monitor.response_callbacks.clear()  # as redis-cli, which does not read the answers
    for command in (
        f"HGETALL {keys.stats}",
        f"XINFO GROUPS {keys.tasks}",
        f"XINFO CONSUMERS {keys.tasks} workers",
        f"ZRANGE {keys.leases} 0 9 WITHSCORES",
        f"XRANGE {keys.tasks} - + COUNT 1",
        f"XREVRANGE {keys.dead} + - COUNT 5",
        f"ZRANGE {keys.workers} 0 -1 WITHSCORES",
        f"FCALL_RO eq1_audit 1 {keys.prefix}",
        f"FCALL_RO eq1_status 1 {keys.prefix}",
        f"MEMORY USAGE {keys.replay}",
        "INFO persistence",
        "CLIENT LIST",
    ):
        monitor.execute_command(*command.split(" "))
    for command in (
        f"XADD {keys.tasks} * id a",
        f"DEL {keys.stats}",
        f"FCALL eq1_finish 1 {keys.prefix}",
        "CONFIG GET *",
        "FLUSHALL",
        "SLOWLOG GET 1",  # it shows the arguments of slow calls, what `publish_keys` was told among them
        "KEYS *",
        "GET elsewhere",
    ):
        assert _refused(partial(monitor.execute_command, *command.split(" "))), command


def test_celery_sees_its_own_keys_only(queue: Clients, acting: As) -> None:
    QueueHarness(queue)
    broker: Any = acting("celery").client
    broker.lpush(f"{CELERY}celery", "message")
    broker.brpop([f"{CELERY}celery"], timeout=1)
    pubsub = broker.pubsub()
    pubsub.psubscribe(f"{CELERY}/0.celeryev/worker.*")
    wait_until(lambda: pubsub.get_message(timeout=0.1), "the subscription")
    pubsub.close()
    assert _refused(lambda: broker.hgetall(queue.keys.state))
    assert _refused(lambda: broker.xadd(queue.keys.tasks, {"id": "a"}))


def test_a_role_without_a_right_reads_one_clear_error(queue: Clients, acting: As) -> None:
    QueueHarness(queue)
    with pytest.raises(ServiceError, match="this role's Redis user may not do that"):
        acting("worker").admit()
