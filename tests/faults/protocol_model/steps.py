"""The steps that may happen next in the small model: every step of every process, and everything that may go wrong.

A step that calls the queue has, while something may still go wrong, two more outcomes: the reply is lost, so that the
move is sent again; or it is answered and then forgotten, as by a replica that lagged.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.faults.protocol_model.model import (
    DOWN,
    NOBODY,
    Checkpoint,
    Group,
    Learner,
    Move,
    Protocol,
    State,
    Step,
    Version,
    advance,
    ancestor,
    chain,
    commit,
    complete,
    drain,
    lease,
    newest,
    pending,
    progress,
    publish,
    resume,
    uncommit,
)

Take = Callable[[State, Any], State]
"""A function from the caller's state and the answer to its next state."""


def steps(protocol: Protocol, state: State) -> Iterator[Step]:
    """Everything that may happen next."""
    yield from work(protocol, state)
    yield from housekeep(protocol, state)
    yield from Process(protocol, state, "learner").steps()
    if state.ghost is not None:
        yield from Process(protocol, state, "ghost").steps()
    if state.faults:
        for what, after in disasters(protocol, state):
            yield Step(what, after._replace(faults=state.faults - 1), fault=True)


def call(
    state: State, what: str, move: Move, take: Take, *, forget: Take | None = None, token: bool = False
) -> Iterator[Step]:
    """A move and its answer. `token`: it knows its repetition, and answers the same again."""
    queue, answer = move(state.queue)
    yield Step(what, take(state._replace(queue=queue), answer))
    if not state.faults:
        return
    spent = state._replace(faults=state.faults - 1)
    again, second = move(queue)
    if not token and (again, second) != (queue, answer):
        yield Step(f"{what}; the reply is lost, it is sent again", take(spent._replace(queue=again), second), True)
    if queue != state.queue:
        yield Step(f"{what}; Redis forgets it again", (forget or take)(spent, answer), True)


def work(protocol: Protocol, state: State) -> Iterator[Step]:
    """A worker completes what it has generated, or leases and generates.

    Of workers that are idle and hold no lease one speaks for all, since they are alike.
    """
    holders, fresh = {holder for _, holder in state.queue.tasks}, False
    for worker, group in enumerate(state.workers, 1):
        if group is not None:
            what = f"worker {worker} completes {group.task}, made by {group.made_by}"
            yield from call(state, what, complete(protocol, worker, group), _busy(worker, lambda _: None))
            if protocol.partials and group not in state.queue.partials:
                what = f"worker {worker} keeps how far it is with {group.task}, made by {group.made_by}"
                yield from call(state, what, progress(protocol, worker, group), lambda after, _: after)
        elif worker in holders or not fresh:
            fresh = fresh or worker not in holders
            yield from _lease(protocol, state, worker)


def _lease(protocol: Protocol, state: State, worker: int) -> Iterator[Step]:
    if state.queue.published is None:
        return
    for task in sorted(task for task, holder in state.queue.tasks if holder == 0):
        move = lease(protocol, task, worker)
        what = f"worker {worker} leases {task} and generates with {move(state.queue)[1]}"
        take = _busy(worker, partial(Group, task))
        yield from call(state, what, move, take, token=protocol.tokens)


def _busy(worker: int, with_what: Callable[[Any], Group | None]) -> Take:
    def take(after: State, answer: Any) -> State:
        workers = (*after.workers[: worker - 1], with_what(answer), *after.workers[worker:])
        return after._replace(workers=workers)

    return take


def housekeep(protocol: Protocol, state: State) -> Iterator[Step]:
    for task, holder in sorted(state.queue.tasks):
        rest = state.queue.tasks - {(task, holder)}
        if holder > 0 and protocol.reclaim:
            after = state._replace(queue=state.queue._replace(tasks=rest | {(task, 0)}))
            yield Step(f"worker {holder}'s lease of {task} expires", after)
        if holder > 0 and not protocol.keep_consumers_with_leases:
            after = state._replace(queue=state.queue._replace(tasks=rest | {(task, NOBODY)}))
            yield Step(f"consumer {holder} is deleted, with {task} pending", after)


def disasters(protocol: Protocol, state: State) -> Iterator[tuple[str, State]]:
    for worker, group in enumerate(state.workers, 1):
        if group is not None:
            yield f"worker {worker} dies", _busy(worker, lambda _: None)(state, None)
    if state.learner.phase == "down":
        return
    stopped = state._replace(learner=DOWN)
    yield "the learner dies", stopped
    if protocol.takeover:
        yield "the learner hangs, and another is started", stopped._replace(ghost=state.learner)
    last = newest(state.store)
    if last is not None:
        store = tuple(one._replace(whole=one.whole and one != last) for one in state.store)
        yield f"the learner dies, and checkpoint {last.name} with it", stopped._replace(store=store)
        lineage = max(last.name.lineage, state.queue.lineage) + 1
        for target in (one for one in state.store if one.whole):
            again = Checkpoint(Version(lineage, target.name.number), target.name, (), True)
            yield f"the operator rewinds to {target.name}", stopped._replace(store=(*state.store, again))


@dataclass(frozen=True)
class Process:
    """One learner's next steps; `who` names its place in the state: the learner, or the ghost of one."""

    protocol: Protocol
    state: State
    who: str

    @property
    def me(self) -> Learner:
        process: Learner = getattr(self.state, self.who)
        return process

    @property
    def version(self) -> Version:
        return Version(self.me.lineage, self.me.version)

    def steps(self) -> Iterator[Step]:
        phases: dict[str, Callable[[], Iterator[Step]]] = {
            "down": self._start,
            "found": self._resume,
            "resumed": self._mark,
            "marked": self._follow,
            "ready": self._go_on,
            "committing": self._commit,
            "committed": self._save,
        }
        yield from phases[self.me.phase]()

    def _start(self) -> Iterator[Step]:
        found = newest(self.state.store)
        name, number = (found.name, found.name.number) if found else (None, 0)
        yield Step(f"a learner starts from {name or 'the base'}", self._now("found", version=number, saved=name))

    def _resume(self) -> Iterator[Step]:
        floor = max((one.name.lineage for one in self.state.store), default=0)
        move, take = resume(self.me.saved, floor), self._then("resumed", "lineage")
        yield from call(self.state, f"{self.who}: resume at {self.me.version}", move, take, token=True)

    def _mark(self) -> Iterator[Step]:
        """A checkpoint of its own lineage, so that none of an older learner's is taken for the newest."""
        if not self.protocol.checkpoint_on_resume:
            yield from self._follow()
            return
        mark = Checkpoint(self.version, self.me.saved, (), True)
        after = self._now("marked", saved=mark.name)
        yield Step(f"{self.who}: save checkpoint {mark.name}, as it begins", _stored(after, mark))

    def _follow(self) -> Iterator[Step]:
        """Leads the queue to our checkpoint: uncommits what was left behind, then commits what is ahead."""
        queue = self.state.queue
        there, here = (chain(self.state.store, name) for name in (queue.committed, self.me.saved))
        settled = queue.settled if self.protocol.commits_know_their_steps else None
        left_behind = [one for one in there if one not in here] if self.protocol.uncommit_on_resume else []
        ahead = [one for one in here if one not in there] if self.protocol.commit_on_resume else []
        if left_behind:
            one = left_behind[0]
            what = f"uncommit {one.name}: {' '.join(one.trained[:settled])}, the last of them"
            yield from self._call(what, uncommit(one, settled), self._then("marked"))
        elif settled is not None:
            yield from self._commit_step(there[0].name, there[0].trained, settled, self._then("marked"))
        elif ahead:
            yield from self._commit_step(ahead[-1].name, ahead[-1].trained, 0, self._then("marked"))
        elif self.protocol.pending_on_resume:
            move, then = pending(self.protocol), self._then("ready", "hand")
            yield from self._call("take what was drained before", move, then, turn=False)
        else:
            yield Step(f"{self.who}: begin with nothing in hand", self._now("ready"))

    def _go_on(self) -> Iterator[Step]:
        me = self.me
        if me.published < me.version or self._pointer_forgotten():
            then = self._then("ready", published=me.version)
            yield from self._call(f"publish {self.version}", publish(self.version), then, turn=False)
        if me.hand:
            yield from self._learn()
        else:
            then = self._then("ready", "hand")
            yield from self._call("drain", drain(self.protocol), then, token=self.protocol.tokens)
        if me.trained and self.protocol.checkpoint_before_commit:
            yield from self._save()
        elif me.trained:
            yield from self._commit()

    def _pointer_forgotten(self) -> bool:
        ours = Version(self.me.lineage, self.me.published)
        return self.protocol.publish_what_was_forgotten and (self.state.queue.published or (0, 0)) < ours

    def _learn(self) -> Iterator[Step]:
        """No other role sees the update itself, so it is one step with `advance`."""
        me = self.me
        (task, made_by), *rest = me.hand
        lag, version = me.version - made_by.number, me.version + 1
        then = self._then("ready", version=version, hand=tuple(rest), trained=(*me.trained, task))
        if lag > self.protocol.s:
            then = _wrong("trained beyond S")
        elif not ancestor(made_by, me, self.state.store):
            then = _wrong("trained on what abandoned weights made")
        yield from self._call(f"train {task}, lag {lag}, and advance to {version}", advance(version), then)

    def _save(self) -> Iterator[Step]:
        first = self.protocol.checkpoint_before_commit
        made = Checkpoint(self.version, self.me.saved, self.me.trained, True)
        after = self._now("committing") if first else self._now("ready", saved=self.version, trained=())
        what = f"{self.who}: save checkpoint {made.name}: {' '.join(made.trained)}"
        yield Step(what, _stored(after, made))

    def _commit(self) -> Iterator[Step]:
        """Commits the checkpoint just saved; or, where that rule is off, the one about to be saved."""
        step, first = self.me.moved, self.protocol.checkpoint_before_commit
        if step + 1 < len(self.me.trained):
            then = self._then("committing", moved=step + 1)
        elif first:
            then = self._then("ready", saved=self.version, trained=(), moved=0)
        else:
            then = self._then("committed", moved=0)
        yield from self._commit_step(self.version, self.me.trained, step, then)

    def _commit_step(self, name: Version, trained: tuple[str, ...], step: int, then: Take) -> Iterator[Step]:
        move = commit(self.protocol, name, trained, step)
        yield from self._call(f"commit {name}: {' '.join(trained[step : step + 1])}", move, then)

    def _call(self, what: str, move: Move, take: Take, turn: bool = True, token: bool = False) -> Iterator[Step]:
        """A move that only the newest learner may make; with a turn, only if Redis remembers all turns before."""
        refused = self.protocol.fence and self.me.lineage != self.state.queue.lineage
        if refused or (self.protocol.turns and turn and self.me.behind):
            gone = DOWN if self.who == "learner" else None
            yield Step(f"{self.who}: {what}, is refused and ends", _become(self.state, self.who, gone))
            return

        def forget(after: State, answer: Any) -> State:
            process: Learner = getattr(take(after, answer), self.who)
            return _become(after, self.who, process._replace(behind=process.behind or turn))

        yield from call(self.state, f"{self.who}: {what}", move, take, forget=forget, token=token)

    def _now(self, phase: str, **changes: Any) -> State:
        return _become(self.state, self.who, self.me._replace(phase=phase, **changes))

    def _then(self, phase: str, answer_is: str = "", **changes: Any) -> Take:
        def take(after: State, answer: Any) -> State:
            told = {answer_is: answer} if answer_is else {}
            return _become(after, self.who, self.me._replace(phase=phase, **changes, **told))

        return take


def _become(after: State, who: str, process: Learner | None) -> State:
    changes: dict[str, Any] = {who: process}
    return after._replace(**changes)


def _stored(after: State, made: Checkpoint) -> State:
    return after._replace(store=(*after.store, made))


def _wrong(what: str) -> Take:
    return lambda after, _: after._replace(wrong=what)
