"""Diagnoses what holds a run up, in sentences that a person can act on.

- `causes` is a pure function of one snapshot of the queue. It names silent roles that hold something first, then the
  roles that wait and what they wait for. The learner's error, the run's error and `echo-queue status` say the same.
- `Stillness` measures for how long nothing has moved.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from echo_queue.queue import staleness_rules
from echo_queue.queue.counts import agreeing, counted, duration
from echo_queue.queue.monitor import Monitor
from echo_queue.queue.types import Lease, Status, WorkerStatus
from echo_queue.records import Version

SILENT_MS = 5_000
"""A role is silent after this time: workers and the learner's housekeeper report about once a second."""
GONE_MS = 60_000
"""A learner counts as gone, and not only as silent, after this time."""
WAIT = ("waits", "wait")
NAMED = 8
"""The largest number of chunks or workers that a sentence names."""


@dataclass(frozen=True)
class RunSnapshot:
    """A snapshot of the run. `unexpanded`: for each declared set, the numbers of its chunks that have no shard yet."""

    status: Status
    unexpanded: Mapping[str, Sequence[int]]


def snapshot(monitor: Monitor) -> RunSnapshot:
    """Reads a snapshot of the run. Raises `ServiceError` if Redis does not answer."""
    submissions = [found for name in monitor.unserved_sets() if (found := monitor.submission_status(name))]
    unexpanded = {
        submission.name: [chunk.number for chunk in submission.waiting]
        for submission in submissions
        if submission.waiting
    }
    return RunSnapshot(monitor.status(), unexpanded)


def causes(found: RunSnapshot | None, still_s: float) -> tuple[str, ...]:
    """Returns why nothing has moved for `still_s` seconds, causes first; empty for a run that is finished, or that is
    kept open and has nothing to do.

    `found` is None if Redis does not answer.
    """
    if found is None:
        return ("Redis does not answer",)
    if found.status.finished or (found.status.waits_for_prompts and not found.unexpanded):
        return silent(found.status)
    return (*silent(found.status), *_waiting(found, f"for {still_s:.0f} s"))


def silent(status: Status) -> tuple[str, ...]:
    """Returns a sentence for each role that should report and does not. One snapshot is enough to be certain."""
    return () if status.finished else tuple(_silent(status))


def of_worker(lease: Lease, serving: Version, still_s: float) -> str:
    """Returns the diagnosis of an idle worker, which may see no more of the queue than its lease."""
    learner, published = lease.learner_version, lease.published
    if published is None:
        return f"the learner has published no weights yet: it is at version {learner}, unheard for {still_s:.0f} s"
    return (
        f"no task came for {still_s:.0f} s: the learner stands at version {learner} and published "
        f"{published.version}, which {'is' if serving == published.version else 'is not'} served here"
    )


class Stillness:
    """Measures for how long nothing has moved: no prompt, task, group, answer of an evaluation or version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[int, ...] = ()
        self._moved = clock()

    def seconds(self, status: Status | None) -> float:
        """Returns for how long nothing has moved, `status` included. None, a failed snapshot, counts as no movement."""
        figures = () if status is None else _moving_figures(status)
        if figures and figures != self._last:
            self._last, self._moved = figures, self._clock()
        return self._clock() - self._moved


def _moving_figures(status: Status) -> tuple[int, ...]:
    published = status.published.version if status.published else Version(0, 0)
    depths = (status.submitted, status.backlog, status.tasks, status.retry, status.trained, status.dead)
    moved = (status.counts.get(what, 0) for what in ("completed", "asked", "answered", "concluded"))
    return (*status.learner, *published, *depths, *moved)


def _silent(status: Status) -> Iterator[str]:
    for worker in status.workers:
        if worker.held and not _heard(worker):
            left = "has left, or was not heard for an hour"
            age = left if worker.silent_ms < 0 else f"its heartbeat is {duration(worker.silent_ms / 1000)} old"
            yield f"{worker.name} holds {counted(worker.held, 'task')} and {age}"
        if worker.suspended:
            yield f"{worker.name} is suspended until `echo-queue reinstate CONFIG {worker.name}`: {worker.suspended}"
    waiting = _free(status)
    if not _living(status) and waiting + status.backlog:
        yield f"no worker lives; {counted(waiting, 'task')} and {counted(status.backlog, 'prompt')} wait"
    if not status.learner_came:
        yield "no learner has begun yet"
    elif not _learner_heard(status):
        gone, age = status.learner_silent_ms > GONE_MS, f"{duration(status.learner_silent_ms / 1000)} ago"
        held = f" and {'had' if gone else 'has'} {counted(status.drained, 'group')} in hand" if status.drained else ""
        yield ("no learner lives: the last one was heard " if gone else "the learner was last heard ") + age + held


def _waiting(found: RunSnapshot, since: str) -> Iterator[str]:
    status = found.status
    for name, numbers in found.unexpanded.items():
        were, them = agreeing(len(numbers), "was", "were"), agreeing(len(numbers), "it", "them")
        yield f"{_named('chunk', numbers)} of set {name} {were} never expanded: no Celery worker took {them}"
    if not status.submitted and not found.unexpanded:
        yield "no prompts have been submitted"
    yield from _workers_wait(status, since)
    batch, in_hand = status.rules.batch, status.drained - status.uncommitted
    ready = status.ready + in_hand
    if in_hand >= batch and _learner_heard(status):
        yield f"the learner has been at update {status.learner.number + 1}, of {counted(in_hand, 'group')}, {since}"
    elif ready >= batch:
        yield f"{counted(ready, 'group', *WAIT)} for the learner, which has trained none {since}"
    elif (round := status.evaluation) is not None:
        left = counted(round.waiting + round.running, "prompt")
        yield f"the evaluation of version {round.version} lacks answers to {left}, {round.running} of which are leased"
    elif _learner_heard(status):
        yield f"the learner waits: there are {ready} of {counted(batch, 'group')}"


def _workers_wait(status: Status, since: str) -> Iterator[str]:
    living = _living(status)
    if not living:
        return
    published = status.published.version if status.published else None
    quarantined = [worker for worker in living if worker.heartbeat and worker.heartbeat.state == "quarantined"]
    if quarantined:
        mistrust = _agree(quarantined, "mistrusts its weights and loads", "mistrust their weights and load")
        yield f"{_names(quarantined)} {mistrust} them again"
    fetching = [worker for worker in living if worker.heartbeat and worker.heartbeat.state == "fetching"]
    if fetching:
        still = _agree(fetching, "is still fetching", "are still fetching")
        yield f"{_names(fetching)} {still} version {published}, which the learner has published"
    holding = [worker for worker in living if worker.held and worker not in (*fetching, *quarantined)]
    if holding:
        held = counted(sum(worker.held for worker in holding), "task")
        yield f"{_names(holding)} {_agree(holding, 'holds', 'hold')} {held}, and none was completed {since}"
    if free := _free(status):
        yield f"{counted(free, 'task', *WAIT)}, and {_names(living)} {_agree(living, 'leases', 'lease')} none"
    elif status.backlog and not status.in_flight:
        due = _due(status)
        if published is None or published.number < due:
            needed = Version(status.learner.lineage, due)
            yield f"all workers wait for version {needed}, which the learner has not published {since}"
        else:
            yield f"{counted(status.backlog, 'prompt', *WAIT)} in the backlog, and none is admitted at {status.learner}"
            if awaited := [one.name for one in status.components if one.missing and not one.backlog]:
                yield f"the mixture waits for prompts of {', '.join(awaited)}, which are on their way"


def _due(status: Status) -> int:
    """Returns the oldest version that may generate the next group admitted (docs/architecture.md, *Staleness*)."""
    untrained = status.tasks + status.retry + status.replay - status.uncommitted
    return staleness_rules.min_pv(status.learner.number, untrained, status.rules.batch, status.rules.s)


def lives(status: Status) -> bool:
    """Returns whether a worker was heard lately, or a learner, which may have begun just now."""
    return bool(_living(status)) or status.learner_silent_ms <= GONE_MS


def _learner_heard(status: Status) -> bool:
    return 0 <= status.learner_silent_ms <= SILENT_MS


def _living(status: Status) -> list[WorkerStatus]:
    return [worker for worker in status.workers if _heard(worker)]


def _heard(worker: WorkerStatus) -> bool:
    return worker.heartbeat is not None and 0 <= worker.silent_ms <= SILENT_MS


def _free(status: Status) -> int:
    return status.tasks + status.retry - status.in_flight


def _named(what: str, numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - NAMED:,} more" if len(numbers) > NAMED else ""
    return f"{what}{agreeing(len(numbers), '', 's')} {', '.join(map(str, numbers[:NAMED]))}{more}"


def _names(workers: Sequence[WorkerStatus]) -> str:
    more = f" and {len(workers) - NAMED} more" if len(workers) > NAMED else ""
    return ", ".join(worker.name for worker in workers[:NAMED]) + more


def _agree(workers: Sequence[WorkerStatus], one: str, many: str) -> str:
    return agreeing(len(workers), one, many)
