"""Converts the server's answers to the frozen values of `types` and `records`, by pure functions that guess nothing.

`heartbeat_words` writes the hash that the function beside it reads. Numbers that arrive as text are read by
`records/foreign_numbers.py`; only a counter, which Redis itself bounds, is read by `int`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from echo_queue.queue.generation_times import GenerationTimes
from echo_queue.queue.run_rules import rules_of
from echo_queue.queue.types import (
    Announced,
    Audit,
    Chunk,
    ComponentStatus,
    DeadTask,
    Drained,
    EvaluationRound,
    FailedChunk,
    FleetStatus,
    Heartbeat,
    Joined,
    LatestWeights,
    Lease,
    RunKeys,
    ScoredTask,
    Status,
    StoredPartial,
    SubmissionStatus,
    Term,
    UpdateRecord,
    Upstream,
    WorkerOrder,
    WorkerStatus,
)
from echo_queue.records import Group, PromptShard, Published, Task, Version
from echo_queue.records.foreign_numbers import NoNumber, finite, whole
from echo_queue.records.group_codec import refuse


def text(value: bytes) -> str:
    return value.decode()


def milliseconds(time: Sequence[int]) -> int:
    """Returns the server's clock from its answer to TIME: seconds and microseconds."""
    seconds, microseconds = time
    return seconds * 1000 + microseconds // 1000


def fields(flat: Sequence[Any]) -> dict[str, str]:
    """Returns a flat reply (name, value, name, value …) of strings and integers as a dictionary."""
    words = [word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


def published_of(words: Mapping[str, str]) -> Published | None:
    if not words:
        return None
    version = Version(whole(words["lineage"]), whole(words["number"]))
    return Published(version, words["manifest"], words["digest"], whole(words["ms"]) if "ms" in words else 0)


def run_keys_of(words: Mapping[str, str]) -> RunKeys | None:
    if not words:
        return None
    return RunKeys(words["public_key"], bytes.fromhex(words["token_secret"]), bytes.fromhex(words["chunk_key"]))


def task_of(stream: bytes, entry: bytes, flat: Sequence[bytes], min_pv: int) -> Task:
    words, asked = fields(flat), stream == b"evaluation"
    return Task(
        id=words["id"],
        set=words["set"],
        epoch=whole(words["epoch"]),
        index=whole(words["index"]),
        shard=PromptShard(words["shard"], whole(words["first"]), whole(words["count"])),
        attempt=whole(words["attempt"]),
        late=whole(words["late"]),
        pv=whole(words["pv"]),
        min_pv=min_pv,
        lineage=whole(words["lineage"]),
        stream=text(stream),
        entry=text(entry),
        version=Version(whole(words["lineage"]), whole(words["pv"])) if asked else None,
    )


def lease_of(reply: Sequence[Any]) -> Lease:
    (lineage, number, manifest, digest), abandoned, finished, learner_lineage, v, suspended, keeps, tasks = reply
    published = None
    if number is not None:
        published = Published(Version(whole(lineage), whole(number)), text(manifest), text(digest))
    return Lease(
        tasks=tuple(task_of(*task[:4]) for task in tasks),
        published=published,
        learner_version=Version(learner_lineage, v),
        abandoned=bool(abandoned),
        finished=bool(finished),
        suspended=suspension_of(suspended),
        keeps=bool(keeps),
    )


def suspension_of(words: bytes) -> str:
    """Returns why a worker is suspended, from its value in `suspended`; empty if it is not."""
    return words.decode("utf-8", "replace").partition(" ")[2]


def kept_of(reply: Sequence[Any]) -> dict[str, StoredPartial]:
    """Returns the stored partial rollouts of a lease's tasks, by task id."""
    kept = {}
    for _, _, flat, _, words in reply[-1]:
        if words:
            oldest, newest, lineage, tokens, mark, elements = words
            kept[fields(flat)["id"]] = StoredPartial(oldest, newest, lineage, tokens, text(mark), segments_of(elements))
    return kept


def kept_words(words: bytes, elements: Sequence[bytes]) -> StoredPartial:
    """Returns the stored partial rollout of a value of the `partials` hash and the elements of a `segments` list.

    Raises `CodecError` for words that no move has written: a worker's user may write any.
    """
    try:
        oldest, newest, lineage, tokens = map(whole, words.split(b" ")[:4])
        mark = words.split(b" ")[4].decode("ascii")
    except (ValueError, IndexError):
        refuse(f"what is stored of it begins {words[:40]!r}")
    return StoredPartial(oldest, newest, lineage, tokens, mark, segments_of(elements))


def segments_of(elements: Sequence[bytes]) -> tuple[tuple[str, bytes], ...]:
    """Returns kind and payload of each element of a `segments` list."""
    split = (element.partition(b" ") for element in elements)
    return tuple((kind.decode("utf-8", "replace"), payload) for kind, _, payload in split)


def drained_of(reply: Sequence[Any], groups: tuple[Group, ...], malformed: int) -> Drained:
    _, seats, late, abandoned, ready, in_flight, outside, exhausted, *_ = reply
    return Drained(groups, seats, late, abandoned, malformed, ready, in_flight, outside, bool(exhausted))


def record_of(entry: bytes, words: Mapping[bytes, bytes]) -> UpdateRecord:
    lineage, number = text(entry).split("-")
    task, release = text(words[b"task"]), text(words[b"release"])
    return UpdateRecord(Version(whole(lineage), whole(number)), release, task, words[b"line"])


def submission_status_of(name: str, words: Mapping[str, str], chunks: Mapping[bytes, bytes]) -> SubmissionStatus:
    waiting, failed = [], []
    for number, mark in sorted(chunks.items(), key=lambda item: whole(item[0])):
        if chunk := waiting_chunk_of(whole(number), mark):
            waiting.append(chunk)
        elif mark.startswith(b"failed "):
            _, first, count, _, reason = text(mark).split(" ", 4)
            failed.append(FailedChunk(whole(number), whole(first), whole(count), reason))
    prompts = whole(words["prompts"])
    return SubmissionStatus(name, words["source"], whole(words["chunks"]), prompts, tuple(waiting), tuple(failed))


def waiting_chunk_of(number: int, mark: bytes) -> Chunk | None:
    state, first, count, digest, ticket = text(mark).split(" ", 4)
    return Chunk(number, whole(first), whole(count), digest, ticket) if state == "waiting" else None


def heartbeat_words(heartbeat: Heartbeat) -> list[str | float]:
    """Returns the fields of a `worker:<name>` hash."""
    values = ((one.name, getattr(heartbeat, one.name)) for one in dataclasses.fields(Heartbeat))
    sent = ((name, value) for name, value in values if name != MEASURED and (value or name not in SOMETIMES))
    return [word for name, value in sent for word in (name, _word(value))]


def _word(value: object) -> str | float:
    match value:
        case float():
            return round(value, 4)
        case int():
            return value
        case GenerationTimes():
            return value.word()
    return str(value)


def heartbeat_of(words: Mapping[str, str]) -> Heartbeat:
    """Raises `TypeError` or `ValueError` for words that are no heartbeat."""
    return Heartbeat(**{name: read(words[name]) for name, read in READERS.items() if name in words})


def _version_of(word: str) -> Version:
    lineage, number = word.split(".")
    return Version(whole(lineage), whole(number))


MEASURED = "arrived_ms"
"""The field of a heartbeat that no worker sends: the server makes it of `published_ms`."""
SOMETIMES = ("release", "published_ms")
"""Those that are sent only if they are not empty; the second one is not read again."""
KINDS: Mapping[Any, Callable[[str], Any]] = {
    str: str, int: whole, float: finite, Version: _version_of, GenerationTimes: GenerationTimes.parse,
}  # fmt: skip
READERS = {one.name: KINDS[one.type] for one in dataclasses.fields(Heartbeat) if one.name != SOMETIMES[1]}


def order_of(reply: bytes) -> WorkerOrder | None:
    """Returns the order in the answer to a heartbeat; None if there is none, or none of this release."""
    word, _, within_ms = reply.partition(b" ")
    if word not in (b"rest", b"leave"):
        return None
    try:
        return WorkerOrder("rest" if word == b"rest" else "leave", whole(within_ms) / 1000)
    except NoNumber:
        return None


def term_of(reply: Sequence[Any]) -> Term:
    number, leader, plan, paused, now_ms = reply
    return Term(number, text(leader), plan, bool(paused), now_ms / 1000)


def fleet_of(held: Mapping[bytes, bytes], wanted: Mapping[bytes, bytes], now_ms: int) -> FleetStatus:
    """Returns what the fleet's controller says; a number of its that is none counts as 0."""
    leads_ms = max(0, _whole_or_0(held.get(b"until_ms", b"0")) - now_ms)
    machines = {pool.decode("utf-8", "replace"): _whole_or_0(count) for pool, count in sorted(wanted.items())}
    leader = held.get(b"leader", b"").decode("utf-8", "replace")
    return FleetStatus(leader, leads_ms, b"paused" in held, machines, _why(held.get(b"plan")))


def _whole_or_0(words: bytes) -> int:
    try:
        return whole(words)
    except NoNumber:
        return 0


def _why(plan: bytes | None) -> str:
    """Returns the reason that a controller has noted with its plan; empty for a plan of another form."""
    try:
        why = orjson.loads(plan or b"{}").get("why", "")
    except (orjson.JSONDecodeError, AttributeError):
        return ""
    return why if isinstance(why, str) else ""


def latest_weights_of(announced: Sequence[bytes | None], published: Mapping[bytes, bytes]) -> LatestWeights:
    words = {text(name): text(value) for name, value in published.items()}
    route, last = announced
    return LatestWeights(
        published_of(words), None if route is None or last is None else Announced(text(route), whole(last))
    )


def joined_of(reply: Sequence[Any]) -> Joined:
    now_ms, rate, leaf, hold, rows = reply
    # Whoever shares the workers' rights may have written any bytes as a name or an address.
    upstreams = tuple(
        Upstream(name.decode("utf-8", "replace"), address.decode("utf-8", "replace"), children)
        for name, address, children, _ in rows
    )
    return Joined(upstreams, text(leaf), bool(hold), int(rate), now_ms / 1000)


def worker_of(
    name: bytes, silent_ms: int, words: Mapping[bytes, bytes], held: int, suspended: bytes = b""
) -> WorkerStatus:
    """Returns the status of one worker. A malformed heartbeat reads as `unreadable` and never makes a reader fail."""
    try:
        told = {field.decode("utf-8", "replace"): word.decode("utf-8", "replace") for field, word in words.items()}
        heartbeat = heartbeat_of(told) if told else None
    except (TypeError, ValueError):
        heartbeat = Heartbeat(engine="unknown", version=Version(0, 0), state="unreadable")
    return WorkerStatus(name.decode("utf-8", "replace"), silent_ms, heartbeat, held, suspension_of(suspended))


def dead_of(words: Mapping[bytes, bytes]) -> DeadTask:
    return DeadTask(
        id=text(words[b"id"]),
        attempts=whole(words[b"attempt"]),
        reason=words[b"reason"].decode("utf-8", "replace"),
        worker=words[b"worker"].decode("utf-8", "replace"),
        died_ms=whole(words[b"died"]),
    )


def audit_of(reply: Sequence[Any]) -> Audit:
    words = fields(reply)
    return Audit(**{name: int(words[name]) for name in Audit.__dataclass_fields__})


def status_of(reply: Sequence[Any], workers: tuple[WorkerStatus, ...]) -> Status:
    state, rules, published, stats, depths, evaluation = (fields(part) for part in reply[:6])
    counts = {name: int(number) for name, number in stats.items()}
    sizes = {name: int(number) for name, number in depths.items()}
    return Status(
        learner=Version(whole(state["lineage"]), whole(state["v"])),
        published=published_of(published),
        rules=rules_of(rules),
        window=finite(state["window"]),
        finished=bool(sizes.pop("finished")),
        submitted=counts.pop("submitted", 0),
        trained=counts.pop("trained", 0),
        uncommitted=whole(state["uncommitted"]),
        counts=counts,
        workers=workers,
        evaluation=round_of(evaluation),
        components=tuple(map(component_of, reply[6])),
        **sizes,
    )


def component_of(words: Sequence[Any]) -> ComponentStatus:
    name, weight, admitted, backlog, missing = words
    return ComponentStatus(text(name), finite(text(weight)), admitted, backlog, missing)


def round_of(words: Mapping[str, str]) -> EvaluationRound | None:
    if not words:
        return None
    version = Version(whole(words["lineage"]), whole(words["version"]))
    names = ("number", "prompts", "waiting", "running", "scored", "keepers")
    numbers = {name: whole(words[name]) for name in names}
    # Prompts that the learner has not asked yet wait as well.
    numbers["waiting"] += numbers["prompts"] - whole(words["put"])
    return EvaluationRound(version=version, sets=tuple(words["sets"].split()), **numbers)


def scored_of(entry: bytes, words: Mapping[bytes, bytes], group: Group | None) -> ScoredTask:
    task, name, reason = (words.get(one, b"").decode("utf-8", "replace") for one in (b"id", b"set", b"reason"))
    return ScoredTask(text(entry), task, name, whole(words[b"index"]), group, reason)
