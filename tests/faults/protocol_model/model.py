"""The protocol in small: 2 tasks, 2 workers, 1 learner, and one thing that goes wrong. `model_search` visits it all.

- A state is a value, a step leads to the next. The moves are those of `echo_queue/queue/library`, the learner's
  phases those of `learner/training_loop.py` and `learner/recovery/resume.py`; each phase is a place where it may die.
- What may go wrong, once: a worker dies; the learner dies, is taken over while it hangs, or loses its newest
  checkpoint with it; an operator rewinds; Redis dies with a reply on its way, or forgets a move that it acknowledged.
  That a lease expires under a worker which completes all the same is no fault here: it may always happen.
- Each rule of a `Protocol` may be switched off, to see what it is there for.

What is simple here, on purpose: a batch is one group, and a step of a commit moves one; admission lets anything in at
any time, since bound and pace, and so `skip`, are there for freshness and no promise may rest on them.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

NOBODY = -1
"""Holds what was pending for a consumer that was deleted: such a task is handed out to no one again."""


@dataclass(frozen=True)
class Protocol:
    """The size of the instance, S, how many things may go wrong, whether a takeover is one of them, whether workers
    keep partial rollouts; and the rules."""

    tasks: tuple[str, ...] = ("a", "b")
    workers: int = 2
    s: int = 0
    faults: int = 1
    takeover: bool = True
    partials: bool = False
    checkpoint_before_commit: bool = True
    dedupe: bool = True
    check_at_drain: bool = True
    check_abandoned: bool = True
    forks_know_parents: bool = True
    fence: bool = True
    turns: bool = True
    tokens: bool = True
    reclaim: bool = True
    keep_consumers_with_leases: bool = True
    commit_on_resume: bool = True
    uncommit_on_resume: bool = True
    pending_on_resume: bool = True
    checkpoint_on_resume: bool = True
    publish_what_was_forgotten: bool = True
    commits_know_their_steps: bool = True
    check_partials_at_lease: bool = True
    partials_end_with_their_task: bool = True
    progress_of_holders: bool = True


RULES = tuple(field.name for field in fields(Protocol))[6:]


def without(rule: str) -> Protocol:
    partials = rule in RULES[-3:]
    changes: dict[str, Any] = {rule: False, "partials": partials, "takeover": not partials}
    return replace(Protocol(), **changes)


class Version(NamedTuple):
    """The version of weights, and the name of a checkpoint."""

    lineage: int
    number: int

    def __str__(self) -> str:
        return f"{self.lineage}.{self.number}"


class Group(NamedTuple):
    """A group in generation or scored: its task and the weights that made it."""

    task: str
    made_by: Version


class Entry(NamedTuple):
    """A group in replay; `drained`: in the hands of a learner."""

    group: Group
    drained: bool


class Checkpoint(NamedTuple):
    name: Version
    parent: Version | None
    trained: tuple[str, ...]
    whole: bool


class Fork(NamedTuple):
    """`lineage` began at a checkpoint or, with `parent` 0, at the base."""

    lineage: int
    parent: int
    began: int


class Queue(NamedTuple):
    lineage: int
    v: int
    backlog: tuple[str, ...]
    tasks: frozenset[tuple[str, int]]
    """Each with the worker that leases it, counted from 1; 0 if none does."""
    partials: frozenset[Group]
    """The partial rollouts of tasks: the weights that made their oldest token."""
    replay: tuple[Entry, ...]
    trained: tuple[str, ...]
    published: Version | None
    forks: tuple[Fork, ...]
    committed: Version | None
    settled: int | None = None
    """How many groups of that checkpoint are trained while its commit is between two steps; None: all."""


class Learner(NamedTuple):
    """A process. `behind`: Redis has forgotten a turn that this process knows of.

    `moved`: how many of `trained` it has committed.
    """

    phase: str
    lineage: int
    version: int
    saved: Version | None
    hand: tuple[Group, ...]
    trained: tuple[str, ...]
    published: int
    behind: bool
    moved: int = 0


class State(NamedTuple):
    queue: Queue
    workers: tuple[Group | None, ...]
    learner: Learner
    ghost: Learner | None
    """A learner that hung, was replaced, and woke up."""
    store: tuple[Checkpoint, ...]
    faults: int
    wrong: str


class Step(NamedTuple):
    what: str
    after: State
    fault: bool = False


DOWN = Learner("down", 0, 0, None, (), (), -1, False)
Move = Callable[[Queue], tuple[Queue, Any]]
"""Atomic and pure: the queue afterwards, and the answer."""


def begin(protocol: Protocol) -> State:
    queue = Queue(0, 0, protocol.tasks, frozenset(), frozenset(), (), (), None, (), None)
    return State(queue, (None,) * protocol.workers, DOWN, None, (), protocol.faults, "")


# Promises -------------------------------------------------------------------------------------------------------------


def broken(protocol: Protocol, state: State) -> str:
    """The promise that this state breaks, if any."""
    if state.wrong:
        return state.wrong
    queue = state.queue
    places = [*queue.backlog, *(task for task, _ in queue.tasks), *(entry.group.task for entry in queue.replay)]
    if sorted([*places, *queue.trained]) != list(protocol.tasks):
        return "the identity: submitted ≠ backlog + tasks + replay + trained"
    if not {partial_sample.task for partial_sample in queue.partials} <= {task for task, _ in queue.tasks}:
        return "a partial rollout outlives its task"
    history = surviving(state.store)
    return "trained twice in the surviving checkpoints" if len(set(history)) < len(history) else ""


def drained(protocol: Protocol, state: State) -> bool:
    """Every task is trained, and the queue and the surviving checkpoints agree on that."""
    return sorted(state.queue.trained) == sorted(surviving(state.store)) == list(protocol.tasks)


def newest(store: tuple[Checkpoint, ...]) -> Checkpoint | None:
    return max((one for one in store if one.whole), default=None)


def chain(store: tuple[Checkpoint, ...], name: Version | None) -> list[Checkpoint]:
    """The checkpoint of that name and its ancestors, newest first; one that was never saved has none."""
    by_name, found = {one.name: one for one in store}, []
    while name in by_name:
        found.append(by_name[name])
        name = by_name[name].parent
    return found


def surviving(store: tuple[Checkpoint, ...]) -> list[str]:
    last = newest(store)
    return [task for one in chain(store, last.name if last else None) for task in one.trained]


def ancestor(version: Version, learner: Learner, store: tuple[Checkpoint, ...]) -> bool:
    """Returns whether the learner's weights descend from those of `version`."""
    line = [Version(learner.lineage, learner.version), *(one.name for one in chain(store, learner.saved))]
    return version.number == 0 or any(one.lineage == version.lineage and one >= version for one in line)


# Moves of the queue ---------------------------------------------------------------------------------------------------


def unfit(protocol: Protocol, queue: Queue, version: Version) -> bool:
    if queue.v - version.number > protocol.s:
        return True
    return protocol.check_abandoned and abandoned(protocol, queue, version)


def abandoned(protocol: Protocol, queue: Queue, version: Version) -> bool:
    """Returns whether today's lineage does not descend from these weights."""
    if not protocol.forks_know_parents:
        return any(fork.lineage > version.lineage and fork.began < version.number for fork in queue.forks)
    forks = {fork.lineage: fork for fork in queue.forks}
    lineage, number = version
    while lineage in forks and number <= forks[lineage].began:
        lineage = forks[lineage].parent
    line, bound = queue.lineage, queue.v
    while line > lineage and line in forks:
        line, bound = forks[line].parent, min(bound, forks[line].began)
    return line != lineage or number > bound


def admit(queue: Queue) -> Queue:
    """Inside other moves: all of the backlog, once there are weights to generate with."""
    if queue.published is None or not queue.backlog:
        return queue
    return queue._replace(backlog=(), tasks=queue.tasks | {(task, 0) for task in queue.backlog})


def lease(protocol: Protocol, task: str, worker: int) -> Move:
    """The answer: what is generated from here on, or was by the worker that stored its partial rollout."""

    def move(queue: Queue) -> tuple[Queue, Any]:
        kept = {partial_sample for partial_sample in queue.partials if partial_sample.task == task}
        if protocol.check_partials_at_lease:
            kept = {partial_sample for partial_sample in kept if not unfit(protocol, queue, partial_sample.made_by)}
        rest = frozenset(partial_sample for partial_sample in queue.partials if partial_sample.task != task)
        begun = next((partial_sample.made_by for partial_sample in kept), queue.published)
        held = (queue.tasks - {(task, 0)}) | {(task, worker)}
        return queue._replace(tasks=held, partials=rest | kept), begun

    return move


def progress(protocol: Protocol, worker: int, group: Group) -> Move:
    """Stores a worker's partial rollout of a task in place of the one before."""

    def move(queue: Queue) -> tuple[Queue, Any]:
        if protocol.progress_of_holders and (group.task, worker) not in queue.tasks:
            return queue, "lost"
        rest = frozenset(partial_sample for partial_sample in queue.partials if partial_sample.task != group.task)
        return queue._replace(partials=rest | {group}), "kept"

    return move


def forget(protocol: Protocol, queue: Queue, tasks: Collection[str]) -> frozenset[Group]:
    """The partial rollouts that are left once these tasks are no longer under way."""
    ended = tasks if protocol.partials_end_with_their_task else ()
    return frozenset(partial_sample for partial_sample in queue.partials if partial_sample.task not in ended)


def complete(protocol: Protocol, worker: int, group: Group) -> Move:
    def move(queue: Queue) -> tuple[Queue, Any]:
        place = {place for place in queue.tasks if place[0] == group.task}
        if not place and protocol.dedupe:
            return queue, "duplicate"
        rest = queue.tasks - place
        if unfit(protocol, queue, group.made_by):
            back = {(group.task, 0)} if (group.task, worker) in place else place
            return queue._replace(tasks=rest | back), "late"
        replay = (*queue.replay, Entry(group, drained=False))
        return queue._replace(tasks=rest, partials=forget(protocol, queue, (group.task,)), replay=replay), "accepted"

    return move


def drain(protocol: Protocol) -> Move:
    """The ready group with the oldest version, if there is one; what may no longer be trained goes back."""

    def move(queue: Queue) -> tuple[Queue, Any]:
        queue = admit(return_unfit(protocol, queue, drained=False) if protocol.check_at_drain else queue)
        ready = [entry for entry in queue.replay if not entry.drained]
        if not ready:
            return queue, ()
        first = min(ready, key=lambda entry: entry.group.made_by.number)
        rest = tuple(entry for entry in queue.replay if entry is not first)
        return queue._replace(replay=(*rest, first._replace(drained=True))), (first.group,)

    return move


def pending(protocol: Protocol) -> Move:
    """Lists what an earlier learner drained; groups that may no longer be trained go back."""

    def move(queue: Queue) -> tuple[Queue, Any]:
        queue = return_unfit(protocol, queue, drained=True)
        return queue, tuple(entry.group for entry in queue.replay if entry.drained)

    return move


def return_unfit(protocol: Protocol, queue: Queue, drained: bool) -> Queue:
    back = {one for one in queue.replay if one.drained == drained and unfit(protocol, queue, one.group.made_by)}
    rest = tuple(one for one in queue.replay if one not in back)
    return queue._replace(replay=rest, tasks=queue.tasks | {(one.group.task, 0) for one in back})


def advance(version: int) -> Move:
    return lambda queue: (admit(queue._replace(v=max(queue.v, version))), None)


def commit(protocol: Protocol, name: Version, tasks: tuple[str, ...], step: int) -> Move:
    """Moves the group at place `step` of the checkpoint to trained, from any place."""

    def move(queue: Queue) -> tuple[Queue, Any]:
        new = {task for task in tasks[step : step + 1] if task not in queue.trained}
        return queue._replace(
            backlog=tuple(task for task in queue.backlog if task not in new),
            tasks=frozenset(place for place in queue.tasks if place[0] not in new),
            partials=forget(protocol, queue, new),
            replay=tuple(entry for entry in queue.replay if entry.group.task not in new),
            trained=tuple(sorted([*queue.trained, *new])),
            committed=name,
            settled=step + 1 if step + 1 < len(tasks) else None,
        ), None

    return move


def uncommit(one: Checkpoint, settled: int | None) -> Move:
    """Undoes the last step of a commit, since its checkpoint was left behind: moves that group to the backlog."""
    end = len(one.trained) if settled is None else settled

    def move(queue: Queue) -> tuple[Queue, Any]:
        if (queue.committed, queue.settled) != (one.name, settled):
            return queue, None
        undone = one.trained[max(end - 1, 0) : end]
        before = (one.name, end - 1) if end > 1 else (one.parent, None)
        rest = tuple(task for task in queue.trained if task not in undone)
        backlog = (*undone, *queue.backlog)
        return queue._replace(trained=rest, backlog=backlog, committed=before[0], settled=before[1]), None

    return move


def publish(version: Version) -> Move:
    return lambda queue: (admit(queue._replace(published=max(version, queue.published or version))), None)


def resume(parent: Version | None, floor: int) -> Move:
    """A new lineage at that checkpoint, above `floor`. A floor above today's lineage tells that Redis was set back."""
    line, number = parent or (0, 0)

    def move(queue: Queue) -> tuple[Queue, Any]:
        lineage = max(queue.lineage, floor) + 1
        stale = floor > queue.lineage or (queue.published and queue.published.number > number)
        published = None if stale else queue.published
        forks = (*queue.forks, Fork(lineage, line, number))
        return queue._replace(lineage=lineage, v=number, forks=forks, published=published), lineage

    return move
