"""The arguments and results of the queue's moves, as frozen values.

Times are milliseconds by the Redis server's clock if the name ends in `_ms`, and seconds if it ends in `_s`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Literal

from echo_queue.documents import printed
from echo_queue.queue.generation_times import GenerationTimes
from echo_queue.queue.run_rules import RunRules
from echo_queue.records import Group, PartialGroup, Published, Task, Version

Complaint = Literal["bad", "unreachable", "dry"]
Order = Literal["sequential", "shuffled", "held_out"]
Departure = Literal["finished", "preempted", "rest", "dismissed", "stopped", "error"]
"""Why a worker left: the run is finished; its machine is taken away; it was to lease nothing more and had nothing left
to do; the fleet's controller dismissed it; a signal ended it; or it failed."""


@dataclass(frozen=True)
class PromptSet:
    """A set of prompts as submitted: its source, and the order in which the backlog serves it.

    `name`: at most 64 of a-z, 0-9, "_", "." and "-". `source`: the origin of its prompts. A second declaration under
    the same name must be equal in its prompts (the chunks' digests), epochs and order, and in its seed if that order is
    shuffled. `seed` keys the shuffled order. A set whose order is `held_out` is never trained: rounds of evaluation ask
    it. `length_feature`: the column that predicts the length of answers; if empty, the lengths of the prompts predict
    it.
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

    `digest` identifies their content. `ticket`: the JSON by which a reader of the source finds them again.
    """

    number: int
    first: int
    count: int
    digest: str = ""
    ticket: str = "{}"


@dataclass(frozen=True)
class WaitingChunk:
    """A chunk without a shard, and the properties of its set that are needed to make one."""

    source: str
    length_feature: str
    chunk: Chunk


@dataclass(frozen=True)
class FailedChunk:
    """A chunk whose prompts `first … first + count − 1` cannot be read, and why; a fixed set may be declared again."""

    number: int
    first: int
    count: int
    reason: str


@dataclass(frozen=True)
class FailedSet:
    """A set of which `failed` of its `chunks` chunks cannot be read, and the reason of the first of them.

    One without chunks was refused as a whole, and never declared.
    """

    name: str
    chunks: int
    failed: int
    reason: str


@dataclass(frozen=True)
class SubmissionStatus:
    """The progress of a set's submission. `waiting`: the chunks that still have no shard."""

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
    """The progress of a set's submission in numbers.

    The set has `chunks` chunks with `prompts` prompts. `arrived` chunks with `count` prompts have been submitted, and
    `failed` chunks cannot be read.
    """

    chunks: int
    prompts: int
    arrived: int
    count: int
    failed: int

    @property
    def whole(self) -> bool:
        """True if all of it has arrived, so that its source is not needed any more."""
        return self.arrived == self.chunks

    @property
    def settled(self) -> bool:
        return self.arrived + self.failed == self.chunks


@dataclass(frozen=True)
class Lease:
    """The answer to a lease: the worker's tasks, the newest weights, and whether its own may still generate.

    `abandoned`: a restart of the learner left behind the version that the worker serves; it must fetch before it
    generates. Each task's `min_pv` is the oldest version that may still generate it, at most `published`. `partials`,
    by task id: partial rollouts of earlier workers that may be continued. Such a task's `min_pv` is at least the newest
    version in its partial rollout, because a sample never goes back to older weights. `suspended`: why the learner lets
    this worker lease nothing; empty unless it does. `keeps`: the worker is to serve its version until the round of
    evaluation that asks it is answered, and is chosen for that.
    """

    tasks: tuple[Task, ...]
    published: Published | None
    learner_version: Version
    abandoned: bool
    finished: bool
    partials: Mapping[str, PartialGroup] = field(default_factory=dict)
    suspended: str = ""
    keeps: bool = False


@dataclass(frozen=True)
class StoredPartial:
    """A partial rollout as the queue keeps it: its plain fields and its segments.

    Each segment is its kind and its bytes ("segment") or their place in the object store ("ref"). `mark` identifies the
    content of all of them.
    """

    oldest: int
    newest: int
    lineage: int
    tokens: int
    mark: str
    segments: tuple[tuple[str, bytes], ...]


class Stored(IntEnum):
    """The answer to `progress`. `gap`: the queue does not have what the segment continues, and wants all of it."""

    lost = 0
    taken = 1
    gap = 2


class Outcome(StrEnum):
    """The outcome of a completion."""

    accepted = "accepted"
    duplicate = "duplicate"
    """Another completion of the task came first."""
    late = "late"
    """The group is older than the learner can still train, or made with abandoned weights; the task goes back."""
    dead = "dead"
    """An operator has given the task up meanwhile; only `revive` brings it back."""
    mixed = "mixed"
    """It has tokens of another version than the one that its round of evaluation asks; the task goes back."""
    suspended = "suspended"
    """The learner has suspended this worker, because of the groups that it sent."""
    unknown = "unknown"
    """No such task is open: it has been trained, or never was admitted."""


@dataclass(frozen=True)
class Drained:
    """The answer to a drain: groups for the learner, and the state of the queue after it.

    `seats`: seats kept for groups in flight that the learner waits for. `late`, `abandoned`: groups that this call sent
    back. `malformed`: groups that were bad, or whose object is missing. `ready`: admissible groups left in replay.
    `in_flight`: groups under lease. `outside`: prompts not yet in the learner's hands: unsubmitted, in the backlog, in
    tasks or ready. `exhausted`: there is nothing left to wait for, so a smaller last batch may be trained.
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

    def then(self, step: "Drained") -> "Drained":
        """Returns the answer to a drain that took one step more."""
        return replace(
            step,
            groups=self.groups + step.groups,
            late=self.late + step.late,
            abandoned=self.abandoned + step.abandoned,
            malformed=self.malformed + step.malformed,
        )


@dataclass(frozen=True)
class Resumed:
    """A learner's new lineage, and where the queue stands.

    `committed`: the newest checkpoint whose groups it holds as trained. `settled`: how many of its ids, if a learner
    died between the steps of its commit; None: all of them.
    """

    lineage: int
    committed: str | None
    settled: int | None


@dataclass(frozen=True)
class Reclaimed:
    """Leases that one step of a sweep ended.

    Their tasks went to retry, for the cause named, or died, or were no longer there (`lost`). `cancelled`: they can no
    longer be trained, as after an update on newer groups.
    """

    expired: int
    failed: int
    released: int
    late: int
    dead: int
    lost: int
    cancelled: int

    @property
    def leases(self) -> int:
        """All leases that the step ended."""
        return self.expired + self.failed + self.released + self.late + self.dead + self.lost + self.cancelled


@dataclass(frozen=True)
class RunKeys:
    """The run keys, which the learner hands to the workers.

    They are the learner's public key (hexadecimal), the secret of the tokens with which workers ask one another, and
    the key of encrypted weights.
    """

    public_key: str
    token_secret: bytes = field(repr=False)
    chunk_key: bytes = field(repr=False)


@dataclass(frozen=True)
class Announced:
    """An announced route to the version under way, by its name. `last`: the place of its newest part."""

    route: str
    last: int


@dataclass(frozen=True)
class LatestWeights:
    """The newest published weights and the announced route to the next ones, for a worker's weight watcher."""

    published: Published | None
    announced: Announced | None


@dataclass(frozen=True)
class Heartbeat:
    """A worker's heartbeat: its engine, version and speed. `state` is one word for a person to read."""

    engine: str
    version: Version
    state: str
    tokens_per_s: float = 0.0
    groups_per_s: float = 0.0
    groups: int = 0
    """Groups accepted since the worker started."""
    published_ms: int = 0
    """The time when `version` was published, in the first heartbeat that names this version; 0 in all others."""
    pause_ms: float = 0.0
    """The pause of generation while the weights of `version` were loaded."""
    store_bytes: int = 0
    """Weight bytes read from the store since the worker started."""
    peer_bytes: int = 0
    """Weight bytes read from peers since the worker started."""
    arrived_ms: int = -1
    """The time from the publication of the weights until the worker served them; −1: unknown. The queue measures it."""
    release: str = ""
    """The worker's release of this project; empty if it is not known."""
    pool: str = ""
    """The pool of machines that the worker belongs to (`rollout.pool`); may be empty."""
    machine: str = ""
    """The machine on which the worker runs; empty if it is not known."""
    generation: GenerationTimes = field(default_factory=GenerationTimes)
    """Times from lease to acceptance of the groups accepted last that this worker generated from their beginning."""
    scoring_s: float = 0.0
    """The mean time of the last calls of the environment, from the question to the answer; 0 before the first."""
    unscored: int = 0
    """Samples that have ended and wait for the environment, or are with it."""
    judge_calls: int = 0
    """Questions that judges were asked since the worker started."""
    judge_tokens: int = 0
    """Tokens of these questions and their answers, as the judges' servers count them."""


@dataclass(frozen=True)
class WorkerOrder:
    """The order of a fleet's controller to a worker. `rest`: lease nothing more, finish, and leave.

    `leave`: store partial rollouts, hand all tasks back, and leave within `within_s`.
    """

    word: Literal["rest", "leave"]
    within_s: float = 0.0


@dataclass(frozen=True)
class Term:
    """The answer to a controller that would lead. `number` is 0 while another one, `leader`, does.

    `plan`: what the leader, or the one before, was about to do; empty if there was none. `now_s`: the server's clock.
    """

    number: int
    leader: str
    plan: bytes
    paused: bool
    now_s: float


@dataclass(frozen=True)
class FleetStatus:
    """The controller that leads the fleet, and the machines that it wants of each pool.

    `leader` is empty if nobody ever led it. `leads_ms`: for how long it still leads; 0: nobody does. `why`: its last
    decision in words; empty if it has made none.
    """

    leader: str
    leads_ms: int
    paused: bool
    wanted: Mapping[str, int]
    why: str = ""


@dataclass(frozen=True)
class Peer:
    """A worker's report about itself when it joins the peer exchange.

    `address`: host:port of its part cache, empty if it has none. `rate`: bytes/s at which it fetched, 0 if not known.
    `leaf`: one word why no worker should fetch from it, or empty. `usd_per_gb`: the price of each GB that it sends.
    """

    worker: str
    region: str
    address: str
    rate: int = 0
    leaf: str = ""
    usd_per_gb: float = 0.0


@dataclass(frozen=True)
class Upstream:
    """A worker that another may fetch from. `children`: how many others were sent to it first."""

    worker: str
    address: str
    children: int = 0


@dataclass(frozen=True)
class Joined:
    """The sources from which a worker fetches one route: `upstreams` in this order, then the store.

    `leaf`: why no worker fetches from this one, or empty. `hold`: it is a leaf without upstream, and workers that could
    be its upstream are still to join, so waiting a moment saves reading the store. `rate`: the median rate of the
    region's workers (bytes/s; 0: not known). `now_s`: the server's clock.
    """

    upstreams: tuple[Upstream, ...]
    leaf: str
    hold: bool
    rate: int
    now_s: float


@printed("answered")
@dataclass(frozen=True)
class EvaluationRound:
    """The round of evaluation under way: `sets`, of `prompts` prompts together, are answered by `version` alone.

    `scored`: prompts that are answered, or failed in all attempts. The others that were asked wait for a worker or are
    running. `keepers`: workers that serve the version until the round is answered.
    """

    number: int
    version: Version
    sets: tuple[str, ...]
    prompts: int
    waiting: int
    running: int
    scored: int
    keepers: int

    @property
    def answered(self) -> bool:
        return self.scored == self.prompts


@dataclass(frozen=True, eq=False)
class ScoredTask:
    """A prompt of the round under way that is answered, or that failed in all attempts.

    `entry`: its place among them. `group` is None if it failed, for the `reason`.
    """

    entry: str
    task: str
    set: str
    index: int
    group: Group | None
    reason: str = ""


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as of its last heartbeat. `heartbeat` is None once it has expired; `silent_ms` is −1 if not known.

    `held`: tasks under its lease. `suspended`: why the learner lets it lease nothing; empty unless it does.
    """

    name: str
    silent_ms: int
    heartbeat: Heartbeat | None
    held: int = 0
    suspended: str = ""


@dataclass(frozen=True)
class ComponentStatus:
    """A component of the mixture. `admitted`: prompts of it that were admitted since the run began, or Redis was lost.

    `backlog`: its prompts in the backlog, without those that were trained in weights left behind since; `missing`:
    those that were declared and have not been submitted yet. Both count each epoch.
    """

    name: str
    weight: float
    admitted: int
    backlog: int
    missing: int


@dataclass(frozen=True)
class Status:
    """One atomic snapshot of a run, and its workers right after it.

    `counts`: the counters by cause, since the run began. `components`: those of the mixture, in its order; empty
    without one.
    """

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
    """Groups in the learner's hands: drained from replay and not yet committed."""
    replay: int
    uncommitted: int
    trained: int
    dead: int
    learner_silent_ms: int
    """The time since a learner swept last, which it does from its begin on; −1 if none ever did."""
    counts: dict[str, int]
    workers: tuple[WorkerStatus, ...]
    evaluation: EvaluationRound | None = None
    components: tuple[ComponentStatus, ...] = ()

    @property
    def learner_came(self) -> bool:
        """Returns whether a learner was ever heard; without one the queue has no version and no window."""
        return self.learner_silent_ms >= 0

    @property
    def waits_for_prompts(self) -> bool:
        """Returns whether the run is kept open and all that was submitted is done, but for a part of an update."""
        under_way = self.backlog + self.tasks + self.retry + self.ready
        full = self.drained - self.uncommitted >= self.rules.batch
        return self.rules.keep_open and self.learner_came and not (self.finished or under_way or full)

    def ended_before(self, max_updates: int) -> bool:
        """Returns whether the run is finished and goes on under this limit (0: none): an earlier one had ended it."""
        limited = 0 < max_updates <= self.learner.number
        return self.finished and not limited and self.submitted > self.trained + self.dead


@dataclass(frozen=True)
class UpdateRecord:
    """What an update reported about itself.

    `version`: the version that it made; `release`: the learner's release of this project; `task`: one of the tasks that
    it trained; `line`: its metrics as JSON, without the ids of its tasks.
    """

    version: Version
    release: str
    task: str
    line: bytes


@dataclass(frozen=True)
class DeadTask:
    """A task that was given up: its failed attempts, the reason, the worker that tried last, and the time."""

    id: str
    attempts: int
    reason: str
    worker: str
    died_ms: int


@printed("difference", "misplaced", "ok")
@dataclass(frozen=True)
class Audit:
    """The identity `submitted = backlog + tasks + replay + trained + dead`, each term counted independently.

    And `asked = evaluation + scored + concluded` of what is asked for evaluations: tasks of the round under way, its
    answers and failures, and what earlier rounds asked.

    `tasks` is the length of the tasks and retry streams together. `open` counts the ids that have a place; it must
    equal the entries of all streams. `ready` and `in_hand` are the groups of replay that the learner may drain and
    has drained. `in_flight` and `evaluating`, `leases` and `leased` count the tasks under lease: by their versions and
    those of the round, by when they run out, and by the streams' own account. `lost`: entries that vanished from a work
    stream although nothing removed them. `forged`: the times that a move found, and mended, what none of our own code
    writes.
    """

    submitted: int
    backlog: int
    tasks: int
    replay: int
    trained: int
    dead: int
    open: int
    ready: int
    in_hand: int
    in_flight: int
    evaluating: int
    leases: int
    leased: int
    asked: int
    evaluation: int
    scored: int
    concluded: int
    lost: int
    forged: int

    @property
    def difference(self) -> int:
        """Returns the number of prompts missing (positive) or surplus (negative)."""
        return self.submitted - (self.backlog + self.tasks + self.replay + self.trained + self.dead)

    @property
    def misplaced(self) -> int:
        """Returns the number of open ids minus the number of stream entries."""
        return self.open - (self.tasks + self.replay + self.dead + self.evaluation + self.scored)

    @property
    def unasked(self) -> int:
        """Returns the number of prompts asked for evaluations that are missing (positive) or surplus (negative)."""
        return self.asked - (self.evaluation + self.scored + self.concluded)

    @property
    def unlisted(self) -> int:
        """Returns the number of groups in replay that are neither ready nor drained, or are both."""
        return self.replay - self.ready - self.in_hand

    @property
    def ok(self) -> bool:
        whole = self.difference == self.unasked == self.misplaced == self.unlisted == self.lost == self.forged == 0
        return whole and self.in_flight + self.evaluating == self.leases == self.leased
