"""The queue in Python, as one would explain it: where every task is after each move, and what the move answers.

Nothing is atomic, stored or fast here. It says what `echo_queue/queue/library` must do, and `machine` compares the two
after every move. The clients of `echo_queue.queue` are the vocabulary; a name means here what it means there. Time does
not pass: leases run out when told to.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from echo_queue.queue import PromptSet, RunRules, curriculum, staleness_rules
from echo_queue.queue.curriculum import UNSEEN, Seen
from echo_queue.records import Version

FENCED, SET_BACK = "fenced", "set back"
HANDED_BACK, GIVEN_UP, RUN_OUT = -2, -1, 0
"""Why a lease is over, in the order in which a sweep ends leases."""
NO_BOUND = -1
"""The version of a lease that no bound concerns, of a task of a round."""


DEBT_MIN = 8
"""A component is owed, or owes, a batch at most, or so many prompts."""


class Refused(Exception):
    """A learner's move by one that was taken over, or whose moves before this one are forgotten."""


@dataclass(frozen=True)
class Task:
    """A task, as its entry in the stream describes it."""

    id: str
    attempt: int
    late: int
    kept: int
    long: int
    pv: int
    min_pv: int
    lineage: int


@dataclass(frozen=True)
class Lease:
    """`over`: why it is to end with the next sweep; None: it goes on."""

    worker: str
    version: int
    over: int | None = None


@dataclass(frozen=True)
class PartialSample:
    """The progress of a task, and the weights of its oldest and its newest token."""

    oldest: int
    newest: int
    lineage: int
    tokens: int


@dataclass(frozen=True)
class Scored:
    """A group in replay."""

    task: Task
    worker: str
    attempt: int
    oldest: int
    newest: int
    lineage: int
    drained: bool = False

    @property
    def made_by(self) -> Version:
        return Version(self.lineage, self.newest)


@dataclass(frozen=True)
class Answer:
    """A task of the round that is answered, or that failed in all attempts: `worker` is empty then."""

    task: Task
    worker: str = ""
    attempt: int = 0


@dataclass
class Cursor:
    """A set: its chunks (first, count) as declared, those that have arrived, and the next prompt to serve."""

    rules: PromptSet
    chunks: tuple[tuple[int, int], ...]
    arrived: list[int] = field(default_factory=list)
    epoch: int = 0
    next: int = 0
    candidates: list[str] = field(default_factory=list)
    """Prompts that the cursor has passed and that wait for the curriculum's choice: epoch/index/position, sorted."""

    @property
    def held_out(self) -> bool:
        return self.rules.order == "held_out"

    @property
    def whole(self) -> bool:
        return len(self.arrived) == len(self.chunks)

    @property
    def count(self) -> int:
        return sum(self.chunks[chunk][1] for chunk in self.arrived)

    @property
    def left(self) -> int:
        return self.count * self.rules.epochs - self.passed + len(self.candidates)

    @property
    def passed(self) -> int:
        return self.epoch * self.count + self.next

    @property
    def missing(self) -> int:
        return (sum(count for _, count in self.chunks) - self.count) * self.rules.epochs

    @property
    def served(self) -> bool:
        return self.whole and self.left == 0

    @property
    def has_next(self) -> bool:
        """The cursor has a prompt to serve now."""
        if self.rules.order == "shuffled" and not self.whole:
            return False
        return self.next < self.count or (self.whole and self.epoch + 1 < self.rules.epochs)

    def take(self) -> tuple[str, str] | None:
        """The next prompt's task id, and its name as a candidate; None if there is none to serve now."""
        shuffled = self.rules.order == "shuffled"
        if not self.has_next:
            return None
        if self.next == self.count:
            self.epoch, self.next = self.epoch + 1, 0
        at = self.next
        self.next += 1
        if shuffled:
            index = at = permuted(at, self.count, self.rules.seed, self.epoch)
        else:
            index = [first + step for first, count in self._arrivals() for step in range(count)][at]
        return f"{self.rules.name}/{self.epoch}/{index}", f"{self.epoch}/{index}/{at}"

    def _arrivals(self) -> Iterator[tuple[int, int]]:
        return (self.chunks[chunk] for chunk in self.arrived)


def component_of(name: str) -> str:
    """The component of the mixture to which a set, or a task, belongs."""
    return name.partition("/")[0].partition(".")[0]


def permuted(position: int, size: int, seed: int, epoch: int) -> int:
    """Four rounds of a Feistel network over a square, walked until it lands inside."""
    side = math.ceil(math.sqrt(size))
    while True:
        left, right = divmod(position, side)
        for turn in range(1, 5):
            digest = hashlib.sha1(f"{seed}:{epoch}:{turn}:{right}".encode()).hexdigest()
            left, right = right, (left + int(digest[:8], 16)) % side
        position = left * side + right
        if position < size:
            return position


def measure(tokens: float) -> int:
    """A length as the queue compares it: eight to a factor of two."""
    return 64 + math.floor(8 * math.log(1 + tokens) / math.log(2))


@dataclass
class Reference:
    """One run. Streams are dictionaries by task id, in the order of their entries."""

    rules: RunRules
    lineage: int = 0
    v: int = 0
    window: float = 2.0
    uncommitted: int = 0
    committed: str = ""
    turn: tuple[int, str] = (0, "resume")
    published: Version | None = None
    records: list[Version] = field(default_factory=list)
    """The versions that learners have reported on."""
    forks: dict[int, Version] = field(default_factory=dict)
    sets: dict[str, Cursor] = field(default_factory=dict)
    credits: dict[str, float] = field(default_factory=dict)
    """The prompts that each component of the mixture is owed."""
    admitted: Counter[str] = field(default_factory=Counter)
    """The prompts of each component that were admitted."""
    redo: list[str] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)
    tasks: dict[str, Task] = field(default_factory=dict)
    retry: dict[str, Task] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    partials: dict[str, PartialSample] = field(default_factory=dict)
    replay: dict[str, Scored] = field(default_factory=dict)
    dead: dict[str, Task] = field(default_factory=dict)
    rounds: int = 0
    round: tuple[int, Version, str] | None = None
    """The round of evaluation under way: its number, its version and its set."""
    evaluation: dict[str, Task] = field(default_factory=dict)
    scored: dict[str, Answer] = field(default_factory=dict)
    keepers: set[str] = field(default_factory=set)
    asked: int = 0
    concluded: list[int] = field(default_factory=list)
    """The number of tasks of each round that is over."""
    by_hand: set[str] = field(default_factory=set)
    suspended: set[str] = field(default_factory=set)
    """Workers that lease and complete nothing."""
    """The dead tasks that an operator buried."""
    failures: dict[str, int] = field(default_factory=dict)
    """The attempt that failed last."""
    tokens: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    handed: tuple[int, list[str]] = (0, [])
    lengths: dict[tuple[str, str], int] = field(default_factory=dict)
    """The length of the last group of each prompt (set, index), in steps of which eight make a factor of two."""
    buckets: dict[tuple[str, str], int] = field(default_factory=dict)
    """The bucket of each prompt: the prompts that are alike."""
    like: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """The number of first groups of each bucket of a set, and of their tokens."""
    successes: dict[tuple[str, str], Seen] = field(default_factory=dict)
    """What the groups of each prompt (set, index) earned, if there is a curriculum."""
    submitted: int = 0
    trained: int = 0
    leader: tuple[str, int, str] = ("", 0, "")
    """The fleet's controller, the number of its term, and its plan."""
    orders: dict[str, str] = field(default_factory=dict)
    """The order to each worker that has one."""

    # The fleet's controllers ------------------------------------------------------------------------------------------

    def lead(self, name: str) -> tuple[int, str]:
        """Nobody's term lasts, so each that asks leads. Returns the number of its term, and the plan."""
        leader, term, plan = self.leader
        self.leader = name, term + (leader != name), plan
        return self.leader[1], plan

    def plan(self, name: str, term: int, document: str) -> None:
        self._check_leader(name, term)
        self.leader = name, term, document

    def order(self, name: str, term: int, words: tuple[str, str]) -> None:
        """Orders a worker: its name, and what it is to do."""
        self._check_leader(name, term)
        worker, order = words
        self.orders[worker] = order

    def _check_leader(self, name: str, term: int) -> None:
        if self.leader[:2] != (name, term):
            raise Refused(FENCED)

    # Submitters -------------------------------------------------------------------------------------------------------

    def declare(self, rules: PromptSet, chunks: Sequence[tuple[int, int]]) -> None:
        self.sets[rules.name] = Cursor(rules, tuple(chunks))

    def submit(self, name: str, chunk: int, buckets: Sequence[int]) -> bool:
        cursor = self.sets[name]
        if chunk in cursor.arrived:
            return False
        cursor.arrived.append(chunk)
        first, _ = cursor.chunks[chunk]
        self.buckets |= {(name, str(first + place)): bucket for place, bucket in enumerate(buckets)}
        if cursor.held_out:
            return True
        self.submitted += cursor.chunks[chunk][1] * cursor.rules.epochs
        self.admit()
        return True

    @property
    def backlog(self) -> list[Cursor]:
        """Sets that are not served to the end, in the order of service."""
        left = (one for one in self.sets.values() if not (one.served or one.held_out))
        return sorted(left, key=lambda one: -one.rules.priority)

    def admit(self) -> None:
        if self.published is None:
            return
        known = set(self.tasks)
        self._admit(self.published.number)
        new = {task: self.tasks.pop(task) for task in list(self.tasks) if task not in known}
        if self.rules.longest_first and len(new) > 1:
            likely = {task: self._likely_length(list(new), task) for task in new}
            usual = sum(likely.values()) / len(likely)
            order = sorted(new, key=likely.__getitem__, reverse=True)
            new = {task: replace(new[task], long=int(likely[task] >= usual + 8)) for task in order}
        self.tasks |= new

    def _likely_length(self, among: list[str], task: str) -> float:
        """Returns the length of its prompt's last group, or of prompts like it; else the mean of those of its set
        that are admitted with it."""
        name, _, index = task.split("/")
        others = [one.split("/") for one in among]
        known = [length for other, _, at in others if other == name and (length := self._known_length(other, at))]
        return self._known_length(name, index) or (sum(known) / len(known) if known else 0)

    def _known_length(self, name: str, index: str) -> int | None:
        """None if nothing is known of the prompt."""
        if (name, index) in self.lengths:
            return self.lengths[name, index]
        groups, tokens = self.like.get((name, self.buckets.get((name, index), 0)), (0, 0))
        return measure(tokens / groups) if groups else None

    def _admit(self, published: int) -> None:
        n = len(self.tasks) + len(self.retry) + len(self.replay) - self.uncommitted
        in_order = [self._next_by_weight] if self.weights else [partial(self._next, one) for one in self.backlog]
        sources = [self._next_redo, *in_order]
        for source in sources:
            while True:
                min_pv = max(0, self.v + n // self.rules.batch - self.rules.s)
                paced = self.rules.pace and n >= self.window * self.rules.batch
                if min_pv > published or paced:
                    return
                task = source()
                if task is None:
                    break
                if task and not self._settled_before(task):
                    self.tasks[task] = Task(task, 0, 0, 0, 0, self.v, min_pv, self.lineage)
                    self._charge(component_of(task))
                    n += 1

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component of the mixture."""
        named = (one.split(":") for one in self.rules.mixture.split())
        return {name: float(weight) for name, weight in named}

    def _next_by_weight(self) -> str | None:
        """The task of the component that is owed most after it: its next one; None if that is on its way."""
        while owed := self._owed():
            chosen = max(owed, key=owed.__getitem__)
            for cursor in self._sets_of(chosen):
                if (task := self._next(cursor)) is not None:
                    return task
            if any(not cursor.whole for cursor in self._sets_of(chosen)):
                return None
        return None

    def _sets_of(self, component: str) -> list[Cursor]:
        return [one for one in self.backlog if component_of(one.rules.name) == component]

    def _owed(self, served: str = "") -> dict[str, float]:
        """What those are owed after the next admission that take part: they have prompts, or wait for some, or are the
        one that is served."""
        part = [
            name
            for name in self.weights
            if name == served or any(one.has_next or one.candidates or not one.whole for one in self._sets_of(name))
        ]
        total = sum(self.weights[name] for name in part)
        return {name: self.credits.get(name, 0.0) + self.weights[name] / total for name in part}

    def _charge(self, served: str) -> None:
        if served in self.weights:
            owed, most = self._owed(served), max(self.rules.batch, DEBT_MIN)
            owed[served] -= 1
            self.credits |= {name: max(-most, min(most, credit)) for name, credit in owed.items()}
            self.admitted[served] += 1

    def _settled_before(self, task: str) -> bool:
        """A checkpoint holds the task: it counts as trained."""
        known = task in self.settled
        self.settled.discard(task)
        self.trained += known
        return known

    def _next_redo(self) -> str | None:
        return self.redo.pop(0) if self.redo else None

    def _next(self, cursor: Cursor) -> str | None:
        """The task that the set gives next; "" if it only passed prompts that checkpoints hold."""
        on = self.rules.curriculum != "off"
        if not on and not cursor.candidates:
            taken = cursor.take()
            return taken and taken[0]
        passed = None
        room = min(curriculum.TAKEN, self.rules.curriculum_window - len(cursor.candidates)) if on else 0
        while room > 0 and (taken := cursor.take()):
            passed = ""
            if not self._settled_before(taken[0]):
                cursor.candidates = sorted([*cursor.candidates, taken[1]])
                room -= 1
        return self._chosen(cursor) if cursor.candidates else passed

    def _chosen(self, cursor: Cursor) -> str:
        rules, place = cursor.rules, 0
        if self.rules.curriculum != "off":
            seen = [self.successes.get((rules.name, one.split("/")[1]), UNSEEN) for one in cursor.candidates]
            kind, passed = self.rules.curriculum, cursor.passed
            place = curriculum.choose(kind, seen, seed=rules.seed, name=rules.name, passed=passed)
        epoch, index, _ = cursor.candidates.pop(place).split("/")
        return f"{rules.name}/{epoch}/{index}"

    # Workers ----------------------------------------------------------------------------------------------------------

    def lease(
        self, worker: str, version: Version, size: int, token: str
    ) -> list[tuple[str, int, tuple[int, int] | None]]:
        """Task ids, each with the oldest version that may generate it, and with the versions of the partial to go on
        with."""
        if self.published is None or worker in self.suspended:
            return []
        places = self._places_for(worker, version)
        known, ids = self.tokens.get(worker, ("", []))
        if known == token:
            ids = [task for task in ids if self._holds(worker, task)]
        else:
            ids = self._up_to_a_long_one([task for place in places for task in place if task not in self.leases][:size])
            if ids:
                self.tokens[worker] = token, ids
        return [self._begin(worker, version, task, self.published.number) for task in ids]

    def _places_for(self, worker: str, version: Version) -> list[dict[str, Task]]:
        """Where it finds tasks: those of a round only if it serves the round's version, and who keeps that has no
        others once there is a newer one."""
        training = [self.retry, self.tasks]
        if not self.round or not self.evaluation or self.abandoned(version):
            return training
        if self.round[1] != version:
            self.keepers.discard(worker)
            return training
        if worker in self.keepers or not self.keepers:
            self.keepers.add(worker)
            return [self.evaluation, *training] if version == self.published else [self.evaluation]
        return [*training, self.evaluation] if version == self.published else training

    def _up_to_a_long_one(self, ids: list[str]) -> list[str]:
        first = next((place for place, task in enumerate(ids) if self.task(task).long), len(ids))
        return ids[: first + 1]

    def _begin(
        self, worker: str, version: Version, task: str, published: int
    ) -> tuple[str, int, tuple[int, int] | None]:
        if task in self.evaluation:
            return self._begin_answer(worker, task)
        need = min(published, max(self.task(task).min_pv, self.v - self.rules.s))
        by = published if self.abandoned(version) else max(version.number, need)
        partial_sample = self.partials.get(task)
        if partial_sample is not None and not self._may_continue(partial_sample, published):
            del self.partials[task]
            partial_sample = None
        if partial_sample is not None:
            need, by = max(need, partial_sample.newest), partial_sample.oldest
        self.leases[task] = replace(self.leases.get(task, Lease(worker, by)), version=by)
        return task, need, (partial_sample.oldest, partial_sample.newest) if partial_sample else None

    def _begin_answer(self, worker: str, task: str) -> tuple[str, int, tuple[int, int] | None]:
        only = self.evaluation[task]
        one = self.partials.get(task)
        if one is not None and (one.oldest, one.newest, one.lineage) != (only.pv, only.pv, only.lineage):
            del self.partials[task]
            one = None
        self.leases[task] = replace(self.leases.get(task, Lease(worker, NO_BOUND)), version=NO_BOUND)
        return task, only.pv, (one.oldest, one.newest) if one else None

    def _may_continue(self, partial_sample: PartialSample, published: int) -> bool:
        fresh = self.v - partial_sample.oldest <= self.rules.s and partial_sample.newest <= published
        return fresh and not self.abandoned(Version(partial_sample.lineage, partial_sample.newest))

    def renew(self, worker: str, held: Mapping[str, int]) -> list[str]:
        """Renews leases; returns the tasks that the worker no longer holds."""
        for task, version in held.items():
            if self._keeps(worker, task):
                noted = NO_BOUND if task in self.evaluation else version
                self.leases[task] = replace(self.leases[task], version=noted, over=None)
        return [task for task in held if not self._keeps(worker, task)]

    def progress(self, worker: str, task: str, partial_sample: PartialSample) -> list[str]:
        """Stores a partial rollout; returns the task if the worker no longer holds it."""
        if not self._holds(worker, task):
            return [task]
        self.partials[task] = partial_sample
        return []

    def release(self, worker: str, ids: Sequence[str]) -> int:
        held = [task for task in ids if self._holds(worker, task)]
        for task in held:
            self.leases[task] = replace(self.leases[task], over=HANDED_BACK)
        return len(held)

    def fail(self, worker: str, task: str) -> bool:
        if not self._holds(worker, task) or worker in self.suspended:
            return False
        self.failures[task] = self.task(task).attempt
        self.partials.pop(task, None)
        self.leases[task] = replace(self.leases[task], over=GIVEN_UP)
        return True

    def evict(self, worker: str) -> int:
        self.orders.pop(worker, None)
        return self._hand_back(worker)

    def _hand_back(self, worker: str) -> int:
        held = [task for task in self.leases if self._holds(worker, task) and self.leases[task].over != GIVEN_UP]
        for task in held:
            self.leases[task] = replace(self.leases[task], over=HANDED_BACK)
        return len(held)

    def run_out(self, task: str) -> None:
        """Its worker has been silent for too long."""
        lease = self.leases[task]
        self.leases[task] = replace(lease, over=RUN_OUT if lease.over is None else lease.over)

    def complete(
        self, worker: str, task: str, attempt: int, oldest: int, version: Version, *, tokens: int, reward: float
    ) -> str:
        """`reward`: the mean over the group's two samples."""
        done = self.replay.get(task) or self.scored.get(task)
        if done is not None:
            return "accepted" if (done.worker, done.attempt) == (worker, attempt) else "duplicate"
        if refused := self._refused(worker, task):
            return refused
        if task in self.evaluation:
            return self._answer(worker, task, attempt, oldest, version)
        if self.v - oldest > self.rules.s or self.abandoned(version):
            if self._holds(worker, task):
                self.leases[task] = replace(self.leases[task], version=oldest, over=HANDED_BACK)
            return "late"
        name, _, index = task.split("/")
        bucket = self.buckets.get((name, index), 0)
        if bucket and (name, index) not in self.lengths:
            groups, sum_ = self.like.get((name, bucket), (0, 0))
            self.like[name, bucket] = groups + 1, sum_ + tokens
        self.lengths[name, index] = measure(tokens)
        if self.rules.curriculum != "off":
            self.successes[name, index] = self.successes.get((name, index), UNSEEN).after(2, reward)
        made = replace(self._take(task), lineage=version.lineage)
        self.replay[task] = Scored(made, worker, attempt, oldest, version.number, version.lineage)
        return "accepted"

    def _refused(self, worker: str, task: str) -> str:
        """Why nothing that the worker sends of this task is taken; "" if something may be."""
        if not self.is_open(task):
            return "unknown"
        if task in self.by_hand:
            return "dead"
        return "suspended" if worker in self.suspended else ""

    def _answer(self, worker: str, task: str, attempt: int, oldest: int, version: Version) -> str:
        only = self.evaluation[task]
        if (oldest, version) != (only.pv, Version(only.lineage, only.pv)):
            if self._holds(worker, task):
                self.leases[task] = replace(self.leases[task], over=HANDED_BACK)
            return "mixed"
        self.scored[task] = Answer(self._take(task), worker, attempt)
        return "accepted"

    # Evaluation -------------------------------------------------------------------------------------------------------

    def evaluate(self, lineage: int, version: Version, name: str) -> int | None:
        self._fence(lineage)
        cursor = self.sets[name]
        if self.round is None and cursor.whole and cursor.held_out:
            self.rounds += 1
            self.round = self.rounds, version, name
            for index in range(cursor.count):
                task = f"{name}/{self.rounds}/{index}"
                self.evaluation[task] = Task(task, 0, 0, 0, 0, version.number, version.number, version.lineage)
            self.asked += cursor.count
        return self.round[0] if self.round and self.round[1:] == (version, name) else None

    def conclude(self, lineage: int, number: int) -> None:
        self._fence(lineage)
        if self.round is None or self.round[0] != number:
            return
        self.concluded.append(len(self.evaluation) + len(self.scored))
        for task in [*self.evaluation, *self.scored]:
            self._take(task)
            self.failures.pop(task, None)
        self.round, self.keepers = None, set()

    # The learner ------------------------------------------------------------------------------------------------------

    def resume(self, begin: Version, floor: int) -> int:
        set_back = floor > self.lineage
        self.lineage, self.v, self.uncommitted = max(self.lineage, floor) + 1, begin.number, 0
        self.forks[self.lineage] = begin
        self.turn, self.handed = (0, "resume"), (0, [])
        self.suspended.clear()
        if self.published and (set_back or self.published.number > begin.number):
            self.published = None
        self._cancel(lambda lease: lease.version > begin.number, late=False)
        return self.lineage

    def pending(self, lineage: int) -> list[str]:
        self._fence(lineage)
        for one in [one for one in self.replay.values() if one.drained]:
            self._return_if_unfit(one)
        return sorted((task for task, one in self.replay.items() if one.drained), key=self._age)

    def drain(self, lineage: int, turn: int, need: int) -> tuple[list[str], int, int, int, int]:
        """Task ids; seats kept; what went back, late and abandoned; what is outside the learner's hands."""
        self._take_turn(lineage, turn, "drain")
        causes = {"late": 0, "abandoned": 0}
        for one in sorted((one for one in self.replay.values() if not one.drained), key=lambda one: one.oldest):
            if one.oldest < self.v - self.rules.s:
                causes[self._return_if_unfit(one)] += 1
        seats = self._seats()
        if self.handed[0] != turn:
            self.handed = turn, self._hand_out(max(0, need - seats), causes)
        self.admit()
        left = sum(one.left + one.missing for one in self.sets.values() if not one.held_out) + len(self.redo)
        ready = sum(not one.drained for one in self.replay.values())
        outside = left + len(self.tasks) + len(self.retry) + ready
        taken = [task for task in self.handed[1] if task in self.replay]
        return taken, seats, causes["late"], causes["abandoned"], outside

    def advance(self, lineage: int, turn: int, version: int, trained: int, window: float) -> int:
        """Returns how many groups in flight were cancelled."""
        self._take_turn(lineage, turn, "advance")
        if version <= self.v:
            return 0
        self.v, self.uncommitted, self.window = version, self.uncommitted + trained, window
        cancelled = self._cancel(lambda lease: lease.version < version - self.rules.s, late=True)
        self.admit()
        return cancelled

    def skip(self, lineage: int, turn: int, groups: int) -> int:
        """Returns how many groups are trained, or skipped, and not committed."""
        repeated = self.turn == (turn, "skip")
        self._take_turn(lineage, turn, "skip")
        if not repeated:
            self.uncommitted += groups
            self.admit()
        return self.uncommitted

    def commit(self, lineage: int, turn: int, standing: str, ids: Sequence[str]) -> int:
        self._take_turn(lineage, turn, "commit")
        if self.committed == standing:
            return 0
        opened = [task for task in ids if self.is_open(task)]
        for task in opened:
            self._take(task)
            self.failures.pop(task, None)
        self.settled |= set(ids) - set(opened)
        self.trained += len(opened)
        self.committed, self.uncommitted = standing, max(0, self.uncommitted - len(opened))
        return len(opened)

    def uncommit(self, lineage: int, turn: int, standing: str, before: str, ids: Sequence[str]) -> int:
        self._take_turn(lineage, turn, "uncommit")
        if self.committed != standing:
            return 0
        undone = [task for task in ids if task not in self.settled]
        self.settled -= set(ids)
        self.redo = undone + self.redo
        self.trained -= len(undone)
        self.committed = before
        return len(undone)

    def restore(self, lineage: int, turn: int, standing: str, ids: Sequence[str]) -> bool:
        self._take_turn(lineage, turn, "restore")
        if self.committed == standing:
            return True
        known = self.tasks, self.retry, self.replay, self.dead, self.redo, self.evaluation, self.scored
        if self.committed or self.trained or any(known):
            return False
        self.settled, self.committed = set(ids), standing
        return True

    def publish(self, version: Version) -> bool:
        self._fence(version.lineage)
        if self.published is not None and self.published >= version:
            return False
        self.published = version
        self.admit()
        return True

    def record(self, version: Version) -> int:
        self._fence(version.lineage)
        if self.records and self.records[-1] >= version:
            return 0
        self.records.append(version)
        return 1

    def return_unfit(self, lineage: int, task: str) -> bool:
        self._fence(lineage)
        if task not in self.replay:
            return False
        self._send_back(task)
        return True

    def suspend(self, lineage: int, worker: str, ids: Sequence[str]) -> int:
        """Returns how many of these tasks have all their attempts again."""
        self._fence(lineage)
        self.suspended.add(worker)
        self._hand_back(worker)
        return self.revive([task for task in ids if task not in self.by_hand and task not in self.leases])

    # Housekeeping and operators ---------------------------------------------------------------------------------------

    def reclaim(self) -> tuple[int, int, int, int, int, int, int]:
        """Leases that were over: expired, failed, released, late; tasks that died; none that were lost; too late."""
        causes = dict.fromkeys(("expired", "failed", "released", "late", "dead", "lost"), 0)
        for _, task in sorted((lease.over, task) for task, lease in self.leases.items() if lease.over is not None):
            causes[self._end_lease(task)] += 1
        cancelled = self._cancel(lambda lease: lease.version < self.v - self.rules.s, late=True)
        self.admit()
        expired, failed, released, late, dead, lost = causes.values()
        return expired, failed, released, late, dead, lost, cancelled

    def bury(self, task: str) -> bool:
        if (
            not self.is_open(task)
            or task in self.dead
            or task in self.scored
            or (task in self.replay and self.replay[task].drained)
        ):
            return False
        if task in self.evaluation:
            self.scored[task] = Answer(self._take(task))
        else:
            self.dead[task] = self._take(task)
            self.by_hand.add(task)
        self.failures.pop(task, None)
        return True

    def reinstate(self, worker: str) -> int:
        suspended = worker in self.suspended
        self.suspended.discard(worker)
        return int(suspended)

    def revive(self, ids: Collection[str]) -> int:
        leased_from = self.tasks, self.retry, self.evaluation
        failed = [task for task in ids if task in self.failures and any(task in place for place in leased_from)]
        given_up = {*self.dead, *self.unanswered, *failed}
        revived = [task for task in ids if task in given_up]
        for task in revived:
            self.failures.pop(task, None)
            self._send_back(task, attempt=0, late=0, kept=0)
        return len(revived)

    # ------------------------------------------------------------------------------------------------------------------

    def abandoned(self, version: Version) -> bool:
        """Today's weights do not descend from these."""
        return staleness_rules.abandoned(version, self.forks)

    @property
    def unanswered(self) -> list[str]:
        """Tasks of the round that have failed in all attempts."""
        return [task for task, answer in self.scored.items() if not answer.worker]

    def is_open(self, task: str) -> bool:
        places = self.tasks, self.retry, self.replay, self.dead, self.evaluation, self.scored
        return any(task in place for place in places)

    def task(self, task: str) -> Task:
        found = self.tasks.get(task) or self.retry.get(task) or self.dead.get(task) or self.evaluation.get(task)
        return found or (self.replay.get(task) or self.scored[task]).task

    def _holds(self, worker: str, task: str) -> bool:
        return task in self.leases and self.leases[task].worker == worker

    def _keeps(self, worker: str, task: str) -> bool:
        return self._holds(worker, task) and self.leases[task].over in (None, RUN_OUT)

    def _take(self, task: str) -> Task:
        """Out of its place."""
        found = self.task(task)
        places = (
            self.tasks,
            self.retry,
            self.replay,
            self.dead,
            self.evaluation,
            self.scored,
            self.leases,
            self.partials,
        )
        for place in places:
            place.pop(task, None)  # type: ignore[attr-defined]
        self.by_hand.discard(task)
        return found

    def _send_back(self, task: str, **changes: int) -> None:
        floor = self.published.number if self.published else self.v
        asked = task in self.evaluation or task in self.scored
        partial_sample, was = self.partials.get(task), self._take(task)
        if partial_sample is not None:
            self.partials[task] = partial_sample
        if asked:
            self.evaluation[task] = replace(was, **changes)
            return
        self.retry[task] = replace(was, pv=self.v, min_pv=floor, lineage=self.lineage, **changes)

    def _return_if_unfit(self, one: Scored) -> str:
        """The cause, if it goes back; "" if it is fit to be trained."""
        if self.v - one.oldest > self.rules.s:
            self._send_back(one.task.id, late=one.task.late + 1)
            return "late"
        if self.abandoned(one.made_by):
            self._send_back(one.task.id)
            return "abandoned"
        return ""

    def _hand_out(self, room: int, causes: dict[str, int]) -> list[str]:
        taken: list[str] = []
        for task in sorted((task for task, one in self.replay.items() if not one.drained), key=self._age):
            if len(taken) == room:
                break
            if cause := self._return_if_unfit(self.replay[task]):
                causes[cause] += 1
            else:
                self.replay[task] = replace(self.replay[task], drained=True)
                taken.append(task)
        return taken

    def _age(self, task: str) -> tuple[int, int]:
        return self.replay[task].oldest, list(self.replay).index(task)

    def _seats(self) -> int:
        among = self.leases if self.rules.late == "wait" else self.awaited
        oldest = self.v - self.rules.s
        return sum(self.leases[task].version == oldest for task in among if task not in self.evaluation)

    @property
    def awaited(self) -> list[str]:
        """Tasks in flight that were too late before."""
        return [task for task in self.leases if self.task(task).late > 0]

    def _cancel(self, which, late: bool) -> int:  # type: ignore[no-untyped-def]
        trained = ((task, lease) for task, lease in self.leases.items() if task not in self.evaluation)
        gone = sorted((lease.version, task) for task, lease in trained if which(lease))
        for _, task in gone:
            self._send_back(task, late=self.task(task).late + late)
        return len(gone)

    def _end_lease(self, task: str) -> str:
        lease, was = self.leases[task], self.task(task)
        failed = self.failures.get(task) == was.attempt
        if lease.over == HANDED_BACK:
            late = lease.version < self.v - self.rules.s and task not in self.evaluation
            self._send_back(task, late=was.late + late)
            return "late" if late else "released"
        tokens = self.partials[task].tokens if task in self.partials else 0
        attempt = was.attempt + (failed or tokens <= was.kept)
        if attempt < self.rules.max_attempts:
            self._send_back(task, attempt=attempt, kept=tokens)
            return "failed" if failed else "expired"
        if task in self.evaluation:
            self.scored[task] = Answer(replace(self._take(task), attempt=attempt))
        else:
            self.dead[task] = replace(self._take(task), attempt=attempt)
        self.failures.pop(task, None)
        return "dead"

    def _fence(self, lineage: int) -> None:
        if lineage != self.lineage:
            raise Refused(FENCED if lineage < self.lineage else SET_BACK)

    def _take_turn(self, lineage: int, turn: int, move: str) -> None:
        self._fence(lineage)
        if (turn, move) != self.turn and turn != self.turn[0] + 1:
            raise Refused(SET_BACK)
        self.turn = turn, move
