"""The rounds of evaluation of one lineage: asks what is due, reads the answers, keeps the results.

- All of it happens in the housekeeper's thread, in short steps between its sweeps, but that a version is asked right
  before it is published, lest workers pass it by. Training never waits for a round.
  Only a learner that has trained everything waits, for the last version's (`settle`).
- Results are durable in the store before their round leaves the queue. A learner that is killed in between leaves a
  round whose results the next one finds; before it, one whose answers the next one reads.
- What is due follows from the results alone (`schedule`). So a round that is given up is asked anew at the version that
  is the newest then; only where nothing moved, not at the same version again.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from echo_queue.config import Config
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import EchoQueueError
from echo_queue.evaluation import stored
from echo_queue.evaluation.results import EvaluationResult, best_mean, best_of, curves, summarise
from echo_queue.queue import Caller, EvaluationQueue, Evaluations, LearnerQueue, Monitor, Payloads
from echo_queue.queue.types import EvaluationRound, Status
from echo_queue.records import Version
from echo_queue.records.validation import PATIENCE, GroupLimits, GroupValidator
from echo_queue.reporting.evaluation_record import EvaluationRecord
from learner.evaluation.open_round import OpenRound
from learner.evaluation.schedule import is_due

log = logging.getLogger(__name__)

DEADLINE_S = 5.0
"""The longest wait for Redis or the store in one step, since leases end meanwhile; a later step tries again."""
READ_S = 0.5
"""Answers are read for so long in one step."""
IDLE_S = 30.0
"""A run that is kept open and had nothing to do for so long evaluates its newest version, as a run does at its end."""
LOOK_S = 1.0


class EvaluationRounds:
    """The rounds of the lineage that begins at the version `begun`.

    `caller` and `store`: their calls should end within about `DEADLINE_S`. `vocabulary`: the model's. `clock`:
    seconds that never go back. `on_suspend` is told of each worker that is suspended for its answers, `on_best` of each
    result that is the best of its evaluation so far, also of those that earlier learners found. The
    housekeeper's thread calls `observe`, the publish thread `ask_ahead`, the learner's every other method.
    """

    def __init__(
        self,
        config: Config,
        caller: Caller,
        store: ObjectStore,
        *,
        vocabulary: int,
        begun: Version,
        on_suspend: Callable[[str], None] = lambda worker: None,
        on_best: Callable[[EvaluationResult], None] = lambda result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._store, self._begun, self._clock = config, store, begun, clock
        self._on_suspend, self._on_best = on_suspend, on_best
        self.asked: Version | None = None
        """The version of the round under way, which may turn out to be the best; of the last one until another."""
        self._validator = GroupValidator(GroupLimits.of(config, vocabulary), begun, PATIENCE)
        payloads = Payloads.of(config, store, validator=self._validator)
        self._queue = EvaluationQueue(caller, payloads, begun.lineage)
        self._suspend = LearnerQueue(caller, lineage=begun.lineage).suspend
        self._monitor, self._told = Monitor(caller), Evaluations(caller)
        self._deadline_s = config.queue.stall_deadline_s
        self._record = EvaluationRecord(config.run.dir)
        self._results: list[EvaluationResult] | None = None
        """All results of the surviving history; None until they are read."""
        self._untold: list[bytes] = []
        """Lines that Redis has lost."""
        self._open: OpenRound | None = None
        self._asked = (0, 0.0)
        """The number of the round that this learner asked last, and when."""
        self._leaving: tuple[int, Sequence[EvaluationResult]] | None = None
        """The round that is about to leave the queue, by its number, and what came of it."""
        self._left: dict[str, Version] = {}
        """The version of each evaluation that is not asked again, because nothing moved."""
        self._arrived: set[str] = set()
        self._idle_since: float | None = None
        self._workers_live = False
        self._settling = _Settling(clock)

    @property
    def configured(self) -> bool:
        return bool(self._config.evaluation)

    def observe(self, status: Status) -> None:
        """Takes the next steps of the round under way, or asks what is due. Raises `EchoQueueError` for an outage."""
        if not self.configured and status.evaluation is None:
            return
        now = self._clock()
        if self._results is None:
            self._results = self._recalled(status)
            for best in best_of(self._results).values():
                self._on_best(best)
        self._note_idleness(status, now)
        self._workers_live = any(one.heartbeat and not one.suspended for one in status.workers)
        if self._leaving:
            self._leave()
        elif status.evaluation is not None:
            self._follow(status.evaluation, status, now)
        else:
            self._open = None
            self._ask(status, now)
        self._note_settled(now)

    # A round ----------------------------------------------------------------------------------------------------------

    def _ask(self, status: Status, now: float) -> None:
        """Asks the newest version what is due at it."""
        published = status.published
        if published and published.version.lineage == self._begun.lineage and not status.finished:
            self._begin(published.version, now)

    def ask_ahead(self, version: Version) -> None:
        """Publish thread: asks `version`, which is about to be published, if it is due.

        So workers find the round when they come to the version. After an outage the housekeeper asks it.
        """
        if self._results is None or self._open or self._leaving:
            return
        try:
            self._begin(version, self._clock())
        except EchoQueueError as error:
            log.info("version %s is not asked ahead of its publication: %s", version, error)

    def _begin(self, version: Version, now: float) -> None:
        """Begins a round of all evaluations that are due and whose sets have arrived, if a worker may answer it."""
        if self._settling.over or not self._workers_live:
            return
        due = [name for name in self._due(version, now) if self._has_arrived(name)]
        self.asked = version if due else self.asked
        if due and (number := self._queue.evaluate(version, due)):
            self._asked = number, now
            log.info("evaluation %d asks version %s: %s", number, version, ", ".join(due))

    def _follow(self, asked: EvaluationRound, status: Status, now: float) -> None:
        """Reads the answers of the round under way; ends it if all are there, or no more can come."""
        if self._open is None or self._open.number != asked.number:
            self._open, self.asked = self._taken_over(asked, now), asked.version
        if (under_way := self._open) is None:
            return
        under_way.note(asked, status, now)
        if why := self._obsolete(asked) or _half_ended(asked):
            self._give_up(under_way, why)
            return
        self._validator.suspended = {one.name for one in status.workers if one.suspended}
        self._read(under_way)
        self._settling.moved(under_way.moved_s)
        if under_way.whole:
            self._conclude(under_way, now)
        elif under_way.unserved(now):
            self._give_up(under_way, "no worker serves this version any more")
        elif now - under_way.moved_s > self._deadline_s:
            self._left |= dict.fromkeys(under_way.sets, under_way.version)
            self._give_up(under_way, f"nothing moved for {self._deadline_s:.0f} s")

    def _taken_over(self, asked: EvaluationRound, now: float) -> OpenRound | None:
        """Returns the round to be followed from now on; None if an earlier learner had stored its results.

        One that an earlier learner did not ask whole is asked to its end.
        """
        number, asked_s = self._asked
        if number == asked.number:
            return OpenRound(asked, asked_s, now)
        if not self._obsolete(asked):
            if kept := self._stored_results(asked):
                self._tell(asked.number, kept)
                return None
            self._queue.evaluate(asked.version, asked.sets)
            log.info("evaluation %d of version %s goes on", asked.number, asked.version)
        return OpenRound(asked, now, now)

    def _stored_results(self, asked: EvaluationRound) -> list[EvaluationResult]:
        """Returns the results of a round that was about to leave the queue; none if it still needs answers."""
        try:
            found = [stored.read(self._store, name, asked.version)[0] for name in asked.sets]
        except (MissingObject, stored.SpoiledAnswers):
            return []
        return found if all(one.round == asked.number for one in found) else []

    def _obsolete(self, asked: EvaluationRound) -> str:
        """Returns why nobody wants the round's results any more; empty if they are wanted."""
        if self._is_abandoned(asked.version):
            return f"lineage {self._begun.lineage} goes on from version {self._begun.number}, without these weights"
        unknown = [name for name in asked.sets if self._config.evaluation_of(name) is None]
        return f"{unknown[0]} is not configured any more" if unknown else ""

    def _is_abandoned(self, version: Version) -> bool:
        return version.lineage < self._begun.lineage and version.number > self._begun.number

    def _read(self, under_way: OpenRound) -> None:
        """Reads answers that have come, for a while. A worker that sends nothing but bad ones is suspended.

        What it, or one that training has suspended, has failed of the round is asked again.
        """
        self._validator.newest = max(self._begun, under_way.version)
        until_s = time.monotonic() + READ_S
        while (page := self._queue.scored(under_way.read_up_to)) and time.monotonic() < until_s:
            under_way.add(page)
        for one in self._validator.find_unworthy():
            log.warning("worker %s leases nothing more: %s", one.name, one.reason)
            self._suspend(one.name, one.reason, one.tasks)
            self._on_suspend(one.name)
            under_way.forget_failures(one.tasks)

    def _conclude(self, under_way: OpenRound, now: float) -> None:
        """Stores the results of a round, then lets it leave the queue."""
        results = []
        for name in under_way.sets:
            answered = under_way.answered(name)
            asked = replace(self._result_of(under_way, name), seconds=now - under_way.asked_s)
            result = summarise(asked, answered, self._config.selection.reward_success)
            best = result.mean is not None and result.mean > best_mean(self._curve(name))
            results.append(replace(result, best=best))
            stored.write(self._store, results[-1], answered)
        self._tell(under_way.number, results)
        self._settling.moved(now)

    def _give_up(self, under_way: OpenRound, why: str) -> None:
        results = [self._result_of(under_way, name) for name in under_way.sets]
        self._tell(under_way.number, [replace(one, given_up=why) for one in results])

    def _result_of(self, under_way: OpenRound, name: str) -> EvaluationResult:
        """Returns the result without its figures."""
        evaluation, number = self._config.evaluation_of(name), under_way.version.number
        return EvaluationResult(
            evaluation=name,
            version=under_way.version,
            round=under_way.number,
            update=number,
            prompts=len(under_way.answered(name)),
            samples=evaluation.samples if evaluation else 0,
            time_s=time.time(),
        )

    def _tell(self, number: int, results: Sequence[EvaluationResult]) -> None:
        self._leaving = number, results
        self._leave()

    def _leave(self) -> None:
        """Lets a round leave the queue, and tells everyone what came of it. It may be done again after an outage."""
        number, results = self._leaving or (0, ())
        lines = [one.line for one in results]
        self._queue.conclude(number, list(dict.fromkeys([*self._untold, *lines])))
        self._untold.clear()
        self._record.add(lines)
        self._known.extend(one for one in results if not self._is_abandoned(one.version))
        for one in results:
            if one.best and not self._is_abandoned(one.version):
                self._on_best(one)
        self._open = self._leaving = None
        for one in results:
            log.log(logging.WARNING if one.given_up else logging.INFO, "%s%s", one, ", the best so far" * one.best)

    # What is due ------------------------------------------------------------------------------------------------------

    def _due(self, version: Version, now: float) -> list[str]:
        """Returns the evaluations that are due at `version`, the newest one that is published."""
        idle = self._idle_since is not None and now - self._idle_since >= IDLE_S
        last = idle or self._settling.last == version
        return [
            one.name
            for one in self._config.evaluation
            if self._left.get(one.name) != version
            and is_due(one, self._newest(one.name), version, time.time(), last=last)
        ]

    @property
    def _known(self) -> list[EvaluationResult]:
        assert self._results is not None
        return self._results

    def _curve(self, name: str) -> list[EvaluationResult]:
        return curves(self._known).get(name, [])

    def _newest(self, name: str) -> EvaluationResult | None:
        """Returns the newest result of the surviving history, of a round that was answered."""
        return next((one for one in reversed(self._curve(name)) if not one.given_up), None)

    def _has_arrived(self, name: str) -> bool:
        if name not in self._arrived:
            submission = self._monitor.submission_status(name)
            if submission is None or not submission.complete:
                return False
            self._arrived.add(name)
        return True

    def _note_idleness(self, status: Status, now: float) -> None:
        if not status.waits_for_prompts:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def _recalled(self, status: Status) -> list[EvaluationResult]:
        """Returns what earlier learners found out. The store decides; what the other records lack is added to them."""
        known = list(self._record.read(self._told))
        self._record.add([one.line for one in known])
        self._untold = self._record.untold(self._told)
        told = {(one.evaluation, one.version) for one in known if not one.given_up}
        if under_way := status.evaluation:  # which concludes by itself
            told |= {(name, under_way.version) for name in under_way.sets}
        for name, version in stored.versions(self._store):
            if (name, version) not in told:
                known += self._only_stored(name, version)
        return [one for one in known if not self._is_abandoned(one.version)]

    def _only_stored(self, name: str, version: Version) -> list[EvaluationResult]:
        """Adds a result of which only the store knows to the other records. Returns it, if it can be read."""
        try:
            found = stored.read(self._store, name, version)[0]
        except stored.SpoiledAnswers as error:
            log.warning("%s", error)
            return []
        self._record.add([found.line])
        self._untold.append(found.line)
        return [found]

    # The end ----------------------------------------------------------------------------------------------------------

    def settle(self, version: Version, stop: threading.Event, check: Callable[[], None]) -> None:
        """Waits until `version`, which no update follows, is evaluated, or nothing moves for `queue.stall_deadline_s`.

        It must be published. Once `stop` is set, nothing is waited for: the next learner goes on. `check` may raise.
        """
        self._settling.begin(version)
        log.info("all is trained; version %s is evaluated", version)
        while not (stop.is_set() or self._settling.wait(LOOK_S)):
            check()
            if self._settling.unseen_s() > self._deadline_s:
                log.warning("version %s is not evaluated: Redis or the object store does not answer", version)
                return

    def go_on(self) -> None:
        """Says that updates follow after all."""
        self._settling.end()

    def _note_settled(self, now: float) -> None:
        """Wakes `settle` once nothing is under way, and the last version is evaluated or cannot be."""
        last = self._settling.seen(now)
        if last is None or self._open is not None:
            return
        due = [name for name in self._due(last, now) if self._may_arrive(name)]
        if due and self._settling.still_s(now) <= self._deadline_s:
            return
        if due:
            log.warning("version %s is not evaluated: nothing moved for %.0f s", last, self._deadline_s)
        self._settling.settle()

    def _may_arrive(self, name: str) -> bool:
        """Returns whether the set is there, or on its way: once all is trained, nobody declares another one."""
        submission = self._monitor.submission_status(name)
        return submission is not None and not submission.failed


def _half_ended(asked: EvaluationRound) -> str:
    """Returns why a round cannot be answered whole; empty if it can: each of its prompts has a place until it ends."""
    lost = asked.prompts - asked.waiting - asked.running - asked.scored
    return "an earlier learner had begun to end it" if lost > 0 else ""


class _Settling:
    """What the two threads tell one another about the last version."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.last: Version | None = None
        """The version after which no update follows; None while training goes on."""
        self.over = False
        """True once nothing more is asked of it."""
        self._changed = threading.Condition()
        self._moved_s = self._seen_s = 0.0

    def begin(self, version: Version) -> None:
        with self._changed:
            self.last, self.over = version, False
            self._moved_s = self._seen_s = self._clock()

    def end(self) -> None:
        with self._changed:
            self.last, self.over = None, False

    def settle(self) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Waits until nothing more is asked, for so long at most. Returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self.over, timeout_s)

    def moved(self, moved_s: float) -> None:
        """Notes when a round moved, or was concluded."""
        self._moved_s = max(self._moved_s, moved_s)

    def seen(self, now_s: float) -> Version | None:
        """Notes that all steps of an observation succeeded. Returns the last version, while it is not settled."""
        self._seen_s = now_s
        return None if self.over else self.last

    def still_s(self, now_s: float) -> float:
        return now_s - self._moved_s

    def unseen_s(self) -> float:
        return self._clock() - self._seen_s
