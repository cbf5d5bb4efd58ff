"""Turns what the queue and the driver say into the state that a decision looks at. All functions are pure."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from echo_queue.fleet.state import LearnerState, Machine, Suspension, Worker
from echo_queue.queue import Status, WorkerStatus

NOT_SERVING = ("starting", "fetching", "quarantined")
IDLE = ("idle", "starting", "fetching", "quarantined")
BUSY_SHARE = 0.9
"""The learner lacks machines, and not weights or tasks, only if so many of the workers are at work while it waits."""
LEARNER_SILENT_MS = 60_000
AVERAGED_S = 60.0


def workers_of(status: Status, machines: Sequence[Machine]) -> Iterator[Worker]:
    """Yields the workers of these machines. A worker names its machine, or is called like it."""
    names = {machine.known_as: machine.name for machine in machines}
    for worker in status.workers:
        machine = _machine(worker, names)
        if machine in names and worker.silent_ms >= 0:
            beat = worker.heartbeat
            serves = beat is None or beat.state not in NOT_SERVING or beat.groups > 0
            rate = beat.groups_per_s if beat and beat.groups else None
            silent_s, suspended = worker.silent_ms / 1000, bool(worker.suspended)
            yield Worker(names[machine], silent_s, serves and not suspended, None if suspended else rate, suspended)


def suspensions_of(status: Status, machines: Sequence[Machine]) -> Iterator[Suspension]:
    """Yields the workers that the learner has suspended, also those of no machine here."""
    names = {machine.known_as: machine.name for machine in machines}
    for worker in status.workers:
        if worker.suspended:
            yield Suspension(worker.name, names.get(_machine(worker, names), ""), worker.suspended)


def names_on(status: Status, machine: Machine) -> list[str]:
    """Returns the names of the workers of a machine."""
    host = machine.known_as
    return [worker.name for worker in status.workers if _machine(worker, {host}) == host]


def all_busy(status: Status) -> bool:
    """Returns whether nearly all workers that are heard, and may work, are at work."""
    beats = [worker.heartbeat for worker in status.workers if worker.heartbeat and not worker.suspended]
    busy = sum(beat.state not in IDLE for beat in beats)
    return not beats or busy >= BUSY_SHARE * len(beats)


def learner_of(status: Status, t_train_s: float) -> LearnerState:
    """Returns the learner: whether it is heard, whether it gets on, and whether workers could help it to."""
    published = status.published.version.number if status.published else -1
    moved = (status.counts.get(what, 0) for what in ("completed", "answered", "concluded"))
    figures = (status.trained, status.learner.number, published, *moved)
    batch = status.ready + status.drained - status.uncommitted
    lacks_groups = batch < status.rules.batch and status.tasks + status.retry > 0
    return LearnerState(0 <= status.learner_silent_ms <= LEARNER_SILENT_MS, figures, lacks_groups, t_train_s)


class AcceptedRate:
    """Groups per second that the queue has accepted in the last minute, once it has counted for a minute."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, int]] = deque()

    def per_s(self, now_s: float, accepted: int) -> float | None:
        """Returns the rate, with a further reading of the counter."""
        self._past.append((now_s, accepted))
        while len(self._past) > 2 and now_s - self._past[1][0] >= AVERAGED_S:
            self._past.popleft()
        first_s, first = self._past[0]
        return (accepted - first) / (now_s - first_s) if now_s - first_s >= AVERAGED_S else None


def _machine(worker: WorkerStatus, machines: Collection[str]) -> str:
    """Returns the machine of a worker: the one whose name the worker has, or that its heartbeat names."""
    if worker.name in machines or worker.heartbeat is None:
        return worker.name
    return worker.heartbeat.machine
