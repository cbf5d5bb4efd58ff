"""What goes into the queue's moves and what comes out of them, as frozen values.

Times are milliseconds of the Redis server where a name ends in `_ms`, seconds where it ends in `_s`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from echo_queue.config import Config
from echo_queue.records import Group, PartialGroup, Published, Task, Version
from echo_queue.records.group_codec import GROUP_MAX_BYTES

Complaint = Literal["bad", "unreachable"]
Late = Literal["requeue", "wait"]
Order = Literal["sequential", "shuffled"]


@dataclass(frozen=True)
class RunRules:
    """The run's rules, kept in Redis so that every role obeys the same ones.

    `s`: staleness bound in updates. `batch`: B, groups per update. `kappa`: updates per publication
    (shown, not used by the queue). `pace`: keep n ≤ w·B; off, only the bound holds. `longest_first`: of what is
    admitted at once, that which is expected to take longest. `group_max_tokens`: of all samples together.
    """

    s: int
    batch: int
    kappa: int | Literal["auto"] = 1
    lease_ms: int = 30_000
    max_attempts: int = 4
    pace: bool = True
    late: Late = "requeue"
    late_deadline_ms: int = 60_000
    group_max_bytes: int = GROUP_MAX_BYTES
    group_max_tokens: int = GROUP_MAX_BYTES // 8
    longest_first: bool = True

    @classmethod
    def of(cls, config: Config) -> "RunRules":
        """The rules that a configuration states."""
        return cls(
            s=config.staleness.s,
            batch=config.learner.batch_groups,
            kappa=config.staleness.kappa,
            lease_ms=math.ceil(1000 * config.queue.lease_s),
            max_attempts=config.queue.max_attempts,
            pace=config.staleness.pace,
            late=config.staleness.late,
            late_deadline_ms=math.ceil(1000 * config.staleness.late_deadline_s),
            group_max_bytes=config.queue.group_max_bytes,
            group_max_tokens=config.rollout.group_size * config.model.max_new_tokens,
            longest_first=config.queue.longest_first,
        )


@dataclass(frozen=True)
class PromptSet:
    """A set of prompts as submitted: where it comes from and how the backlog serves it.

    `source` says where its prompts come from. A second declaration under the same name must be equal in its
    prompts (the chunks' digests), epochs, order and seed. `seed` keys the shuffled order. `length_feature`: the column
    that tells how long answers may be; empty: their prompts' lengths do.
    """

    name: str
    source: str
    epochs: int = 1
    priority: int = 0
    order: Order = "sequential"
    seed: int = 0
    length_feature: str = ""


@dataclass(frozen=True)
class Chunk:
    """Prompts `first … first + count − 1` of a set, expanded by one submission task.

    `digest` identifies their content. `ticket` is what a reader of the source needs to find them again, as JSON.
    """

    number: int
    first: int
    count: int
    digest: str = ""
    ticket: str = "{}"


@dataclass(frozen=True)
class WaitingChunk:
    """A chunk without a shard, and what of its set is needed to make one."""

    source: str
    length_feature: str
    chunk: Chunk


@dataclass(frozen=True)
class FailedChunk:
    """Prompts `first … first + count − 1` cannot be read, and why; a fixed set may be declared again."""

    number: int
    first: int
    count: int
    reason: str


@dataclass(frozen=True)
class SubmissionStatus:
    """How far a set's submission is; `waiting` are the chunks that still have no shard."""

    name: str
    source: str
    chunks: int
    prompts: int
    waiting: tuple[Chunk, ...]
    failed: tuple[FailedChunk, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.waiting and not self.failed


@dataclass(frozen=True)
class SubmissionCounts:
    """The same in numbers: of `chunks` chunks (`prompts` prompts), `arrived` (`count` prompts) are in the backlog."""

    chunks: int
    prompts: int
    arrived: int
    count: int
    failed: int

    @property
    def settled(self) -> bool:
        return self.arrived + self.failed == self.chunks


@dataclass(frozen=True)
class Lease:
    """What a worker got: its tasks, the newest weights, and what it must know about its own.

    `abandoned`: the version it serves was left behind by a restart of the learner: fetch before
    generating. Each task's `min_pv` is the oldest version that may still generate it, at most `published`.
    `partials`, by task id: how far an earlier worker was, where that may be continued; then `min_pv` is at least the
    newest version in the partial rollout, as a sample never goes back to older weights.
    """

    tasks: tuple[Task, ...]
    published: Published | None
    learner_version: Version
    abandoned: bool
    finished: bool
    partials: Mapping[str, PartialGroup] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredPartial:
    """What the queue keeps of a task under way: what its partial rollout says, and its bytes or where they lie."""

    oldest: int
    newest: int
    lineage: int
    tokens: int
    kind: str
    payload: bytes


class Outcome(StrEnum):
    """What became of a completed group."""

    accepted = "accepted"
    duplicate = "duplicate"
    """Another completion of the task came first."""
    late = "late"
    """Older than the learner can still train, or made with abandoned weights; the task goes back."""
    unknown = "unknown"
    """No such task is open: it has been trained, or never was admitted."""


@dataclass(frozen=True)
class Drained:
    """Groups for the learner, and what it needs to know to go on.

    `seats`: seats kept for groups in flight that are waited for. `late`, `abandoned`, `malformed`: groups that
    this call sent back (or buried). `ready`: admissible groups left in replay. `in_flight`: groups under lease.
    `outside`: prompts not yet in the learner's hands: unsubmitted, in the backlog, in tasks or ready.
    `exhausted`: there is nothing left to wait for, so a smaller last batch may be trained.
    """

    groups: tuple[Group, ...]
    seats: int
    late: int
    abandoned: int
    malformed: int
    ready: int
    in_flight: int
    outside: int
    exhausted: bool


@dataclass(frozen=True)
class Resumed:
    """A learner's new lineage, and the name of the newest checkpoint whose groups the queue holds as trained."""

    lineage: int
    committed: str | None


@dataclass(frozen=True)
class Reclaimed:
    """What one sweep did: leases that went to retry, by cause, and tasks that died."""

    expired: int
    failed: int
    released: int
    late: int
    dead: int


@dataclass(frozen=True)
class RunKeys:
    """What the learner hands to the workers: its public key (hexadecimal), the secret of the tokens with which they ask
    one another, and the key of encrypted weights."""

    public_key: str
    token_secret: bytes = field(repr=False)
    chunk_key: bytes = field(repr=False)


@dataclass(frozen=True)
class Announced:
    """What is announced of the version under way: a route by its name, and the place of its newest part."""

    route: str
    last: int


@dataclass(frozen=True)
class LatestWeights:
    """What a worker that follows the weights looks at."""

    published: Published | None
    announced: Announced | None


@dataclass(frozen=True)
class Heartbeat:
    """A worker's heartbeat: what it runs and how fast. `state` is one word for a person to read."""

    engine: str
    version: Version
    state: str
    tokens_per_s: float = 0.0
    groups_per_s: float = 0.0
    groups: int = 0
    """Groups accepted since it started."""
    published_ms: int = 0
    """In the first heartbeat that names its version: when that was published; 0 in the others."""
    pause_ms: float = 0.0
    """For how long generation stood when they were loaded."""
    store_bytes: int = 0
    """Of weights, read from the store since it started."""
    peer_bytes: int = 0
    """Likewise from other workers."""
    arrived_ms: int = -1
    """From their publication until it served them, by the queue's clock; −1: unknown. Found by the queue."""


@dataclass(frozen=True)
class Peer:
    """What a worker tells of itself when it fetches weights.

    `address`: host:port of its cache, empty if it has none. `rate`: bytes/s at which it fetched, 0 if not known.
    `leaf`: one word why nobody should be fed from it, or empty. `usd_per_gb`: the price of what it sends.
    """

    worker: str
    region: str
    address: str
    rate: int = 0
    leaf: str = ""
    usd_per_gb: float = 0.0


@dataclass(frozen=True)
class Upstream:
    """A worker that may be fetched from. `children`: how many others were sent to it first."""

    worker: str
    address: str
    children: int = 0


@dataclass(frozen=True)
class Joined:
    """Who feeds a worker with one route: `upstreams` in this order, then the store.

    `leaf`: why nobody is fed from it, or empty. `hold`: it is a leaf without upstream, and workers that could be one
    are still to join: waiting a moment saves reading the store. `rate`: what the region's workers reach (median,
    bytes/s; 0: not known). `now_s`: the server's clock.
    """

    upstreams: tuple[Upstream, ...]
    leaf: str
    hold: bool
    rate: int
    now_s: float


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as last heard of. `heartbeat` is None once it has expired; `silent_ms` is −1 if it is not known.

    `held`: tasks under its lease.
    """

    name: str
    silent_ms: int
    heartbeat: Heartbeat | None
    held: int = 0


@dataclass(frozen=True)
class Status:
    """One atomic picture of a run. `counts` are stats by cause, since the run began."""

    learner: Version
    published: Published | None
    rules: RunRules
    window: float
    finished: bool
    submitted: int
    backlog: int
    tasks: int
    retry: int
    in_flight: int
    ready: int
    drained: int
    """In the learner's hands: leased from replay and not yet committed."""
    replay: int
    uncommitted: int
    trained: int
    dead: int
    learner_silent_ms: int
    """Since the learner's housekeeper swept last; −1 if it never did."""
    counts: dict[str, int]
    workers: tuple[WorkerStatus, ...]


@dataclass(frozen=True)
class DeadTask:
    """A task given up: after how many failed attempts, why, who tried last, and when."""

    id: str
    attempts: int
    reason: str
    worker: str
    died_ms: int


@dataclass(frozen=True)
class Audit:
    """`submitted = backlog + tasks + replay + trained + dead`, each side counted by itself.

    `tasks` is the length of the tasks and retry streams together. `open` counts the ids that have a place; it must
    equal the entries of all four streams. `in_flight` counts the tasks under lease, in two ways. `lost`: entries
    that vanished from a work stream although nothing removed them.
    """

    submitted: int
    backlog: int
    tasks: int
    replay: int
    trained: int
    dead: int
    open: int
    in_flight: int
    leased: int
    lost: int

    @property
    def difference(self) -> int:
        """Prompts missing (positive) or surplus (negative)."""
        return self.submitted - (self.backlog + self.tasks + self.replay + self.trained + self.dead)

    @property
    def misplaced(self) -> int:
        """Open ids minus stream entries."""
        return self.open - (self.tasks + self.replay + self.dead)

    @property
    def ok(self) -> bool:
        return self.difference == 0 and self.misplaced == 0 and self.in_flight == self.leased and self.lost == 0
