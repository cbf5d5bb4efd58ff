"""One look at all that a run has in Redis, as plain values, and the same of the reference; the two must be equal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from echo_queue.queue.curriculum import UNSEEN
from echo_queue.records import Version
from tests.faults.reference_machine.reference import Reference, Task
from tests.queue.clients import Clients

PROMPTS = 4
"""The prompts of each set of the machine."""
SUCCESSES = 2 * PROMPTS
WORKERS = ("w1", "w2", "w3")


@dataclass(frozen=True)
class Snapshot:
    """Streams are lists in their order; `leases`: task → worker, version and why it is over; `partials`: task
    → oldest, newest, lineage and tokens; `mixture`: component → credit and admitted prompts; `awaited`: task → version;
    `candidates` and `successes` by set."""

    learner: tuple[int, int, int, str, str]
    published: Version | None
    cursors: list[tuple[str, int, int]]
    candidates: dict[str, list[str]]
    successes: dict[str, bytes]
    mixture: dict[str, tuple[float, int]]
    redo: list[str]
    settled: set[str]
    tasks: list[Task]
    retry: list[Task]
    leases: dict[str, tuple[str, int, int | None]]
    partials: dict[str, list[int]]
    replay: list[tuple[Task, str, int, int]]
    ready: set[str]
    in_hand: set[str]
    dead: list[tuple[str, int]]
    places: dict[str, str]
    awaited: dict[str, int]
    failures: set[str]
    submitted: int
    trained: int
    records: list[Version]
    leader: tuple[str, int, str]
    orders: dict[str, str]
    suspended: set[str]
    round: tuple[int, Version, str] | None
    evaluation: list[Task]
    scored: list[tuple[Task, str]]
    keepers: set[str]
    asked: tuple[int, int]

    def unlike(self, other: "Snapshot") -> str:
        """Returns the differences, one line for each field."""
        pairs = [(field.name, getattr(self, field.name), getattr(other, field.name)) for field in fields(self)]
        return "\n".join(f"{name}: Redis has {mine}, not {theirs}" for name, mine, theirs in pairs if mine != theirs)


def look(queue: Clients) -> Snapshot:
    """Reads the snapshot in one transaction."""
    keys, client = queue.keys, queue.client
    names = [word.decode() for word in client.zrange(keys.backlog, 0, -1)]
    epochs: list[bytes] = client.hkeys(keys.settled)
    pipe = client.pipeline(transaction=True)
    for key in (keys.tasks, keys.retry, keys.evaluation, keys.replay, keys.dead, keys.scored):
        pipe.xrange(key)
    for key in (keys.tasks, keys.retry, keys.evaluation):
        pipe.xpending_range(key, "workers", "-", "+", 1000)
    for key in (keys.state, keys.published, keys.open, keys.failures, keys.stats, keys.partials):
        pipe.hgetall(key)
    for key in (keys.in_flight, keys.leases, keys.awaited, keys.ready, keys.in_hand):
        pipe.zrange(key, 0, -1, withscores=True)
    pipe.lrange(keys.redo, 0, -1)
    pipe.hgetall(keys.settled)
    pipe.mget([keys.settled_bits(epoch.decode()) for epoch in epochs] or [keys.settled_bits("none")])
    pipe.xrange(keys.updates)
    pipe.hmget(keys.fleet, "leader", "term", "plan")
    pipe.mget([keys.order(worker) for worker in WORKERS])
    pipe.hkeys(keys.suspended)
    pipe.hgetall(keys.round)
    pipe.zrange(keys.keepers, 0, -1)
    pipe.hgetall(keys.mixture)
    for name in names:
        pipe.hmget(keys.set(name), "epoch", "next")
        pipe.zrange(keys.candidates(name), 0, -1)
        pipe.get(keys.successes(name))
    tasks, retry, evaluation, replay, dead, answered, held, held_again, asked, *rest = pipe.execute()
    state, published, places, failures, stats, partials, *scored = rest[:11]
    redo, settled, bits, updates, (leader, term, plan), orders, suspended, round, keepers, mixture, *of_sets = rest[11:]
    cursors, waiting, earned = of_sets[::3], of_sets[1::3], of_sets[2::3]
    versions, ends, awaited, ready, in_hand = ({word.decode(): int(score) for word, score in row} for row in scored)
    holders = _holders(tasks, held) | _holders(retry, held_again) | _holders(evaluation, asked)
    now, told = _words(state), _words(published)
    return Snapshot(
        learner=(int(now["lineage"]), int(now["v"]), int(now["uncommitted"]), now.get("turn", "0 resume"),
                 now.get("committed", "")),
        published=Version(int(told["lineage"]), int(told["number"])) if told else None,
        cursors=[(name, int(epoch), int(at)) for name, (epoch, at) in zip(names, cursors, strict=True)],
        candidates={name: [one.decode() for one in found] for name, found in zip(names, waiting, strict=True)},
        successes={name: (found or b"").ljust(SUCCESSES, b"\0") for name, found in zip(names, earned, strict=True)},
        mixture=_mixture(_words(mixture)),
        redo=[task.decode() for task in redo],
        settled=_settled(epochs, settled, bits),
        tasks=[_task(row) for row in tasks],
        retry=[_task(row) for row in retry],
        leases={
            task: (worker, versions.get(task, -1), ends[task] if ends.get(task, 0) <= 0 else None)
            for task, worker in holders.items()
        },
        partials={task: [int(word) for word in text.split(" ")[:4]] for task, text in _words(partials).items()},
        replay=[
            (_task(row), row[1][b"worker"].decode(), int(row[1][b"oldest"]), int(row[1][b"newest"])) for row in replay
        ],
        ready={member.partition(" ")[2] for member in ready},
        in_hand={member.partition(" ")[2] for member in in_hand},
        dead=[(task.id, task.attempt) for task in map(_task, dead)],
        places={task: place.partition(" ")[0] for task, place in _words(places).items()},
        awaited=awaited,
        failures=set(_words(failures)),
        submitted=int(stats.get(b"submitted", 0)),
        trained=int(stats.get(b"trained", 0)),
        records=[Version(*map(int, entry.split(b"-"))) for entry, _ in updates],
        leader=((leader or b"").decode(), int(term or 0), (plan or b"").decode()),
        orders={worker: order.decode() for worker, order in zip(WORKERS, orders, strict=True) if order},
        suspended={worker.decode() for worker in suspended},
        round=_round(_words(round)) if round else None,
        evaluation=[_task(row) for row in evaluation],
        scored=[(_task(row), "" if b"reason" in row[1] else row[1][b"worker"].decode()) for row in answered],
        keepers={worker.decode() for worker in keepers},
        asked=(int(stats.get(b"asked", 0)), int(stats.get(b"concluded", 0))),
    )  # fmt: skip


def _settled(epochs: Sequence[bytes], counts: Mapping[bytes, bytes], bits: Sequence[bytes | None]) -> set[str]:
    """Returns the ids whose bits are set; there are as many as Redis has counted."""
    found = {}
    for epoch, held in zip(epochs, bits, strict=False):
        indices = np.flatnonzero(np.unpackbits(np.frombuffer(held or b"", np.uint8)))
        found[epoch] = {f"{epoch.decode()}/{index}" for index in indices}
    assert counts == {epoch: str(len(ids)).encode() for epoch, ids in found.items()}
    return {task for ids in found.values() for task in ids}


def _mixture(words: Mapping[str, str]) -> dict[str, tuple[float, int]]:
    """Returns what is known of the components that have taken part."""
    pairs = {name: text.split(" ") for name, text in words.items() if text != "0 0"}
    return {name: (float(credit), int(admitted)) for name, (credit, admitted) in pairs.items()}


def _round(words: Mapping[str, str]) -> tuple[int, Version, str]:
    return int(words["number"]), Version(int(words["lineage"]), int(words["version"])), words["sets"]


def expected(run: Reference) -> Snapshot:
    streams = {"tasks": run.tasks, "retry": run.retry, "replay": run.replay, "dead": run.dead}
    streams |= {"evaluation": run.evaluation, "scored": run.scored}
    turn, move = run.turn
    return Snapshot(
        learner=(run.lineage, run.v, run.uncommitted, f"{turn} {move}", run.committed),
        published=run.published,
        cursors=[(one.rules.name, one.epoch, one.next) for one in run.backlog],
        candidates={one.rules.name: one.candidates for one in run.backlog},
        successes={one.rules.name: _successes(run, one.rules.name) for one in run.backlog},
        mixture={name: (credit, run.admitted[name]) for name, credit in run.credits.items()},
        redo=run.redo,
        settled=run.settled,
        tasks=list(run.tasks.values()),
        retry=list(run.retry.values()),
        leases={task: (one.worker, one.version, one.over) for task, one in run.leases.items()},
        partials={task: [one.oldest, one.newest, one.lineage, one.tokens] for task, one in run.partials.items()},
        replay=[(one.task, one.worker, one.oldest, one.newest) for one in run.replay.values()],
        ready={task for task, one in run.replay.items() if not one.drained},
        in_hand={task for task, one in run.replay.items() if one.drained},
        dead=[(task.id, task.attempt) for task in run.dead.values()],
        places={task: name for name, place in streams.items() for task in place},
        awaited={task: run.leases[task].version for task in run.awaited},
        failures=set(run.failures),
        submitted=run.submitted,
        trained=run.trained,
        records=run.records,
        leader=run.leader,
        orders=run.orders,
        suspended=run.suspended,
        round=run.round,
        evaluation=list(run.evaluation.values()),
        scored=[(one.task, one.worker) for one in run.scored.values()],
        keepers=run.keepers,
        asked=(run.asked, sum(run.concluded)),
    )


def _successes(run: Reference, name: str) -> bytes:
    return bytes(byte for index in range(PROMPTS) for byte in run.successes.get((name, str(index)), UNSEEN))


def _holders(entries: list[Any], held: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the workers by task; an entry's id means nothing outside its own stream."""
    tasks = {entry: words[b"id"].decode() for entry, words in entries}
    return {tasks[row["message_id"]]: row["consumer"].decode() for row in held}


def _task(row: tuple[bytes, dict[bytes, bytes]]) -> Task:
    words = _words(row[1])
    numbers = (int(words[name]) for name in ("attempt", "late", "kept", "long", "pv", "min_pv", "lineage"))
    return Task(words["id"], *numbers)


def _words(found: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in found.items()}
