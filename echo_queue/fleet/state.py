"""The values that a decision about a fleet reads and returns. Times are seconds on one clock, that of Redis.

Supply is in groups per second that are fit to train; prices are USD per hour of a machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Machine:
    """A machine that the driver lists. `name`: the one that it was ordered by, which is also that of its worker, or the
    worker names it. `host`: what its workers call it instead, in a place that names machines itself."""

    name: str
    pool: str
    host: str = ""

    @property
    def known_as(self) -> str:
        return self.host or self.name


@dataclass(frozen=True)
class Offer:
    """The machines of a pool as they can be had now.

    `supply`: of one machine, as planned. `limit`: the most machines that may be had. `boot_s`: from the order until it
    serves.
    """

    pool: str
    usd_per_hour: float
    supply: float
    limit: int
    boot_s: float


@dataclass(frozen=True)
class Worker:
    """A worker as the queue knows it. `rate`: groups per second by its own account; None until it has made some.

    `silent_s`: since its last heartbeat. `serves`: it has loaded its model, and is not `suspended` by the learner.
    """

    machine: str
    silent_s: float
    serves: bool
    rate: float | None = None
    suspended: bool = False


@dataclass(frozen=True)
class Suspension:
    """A worker that the learner has suspended, and why. `machine`: empty if the driver lists it no more."""

    worker: str
    machine: str
    why: str


@dataclass(frozen=True)
class Unworthy:
    """A machine that was sent away because its workers are suspended. `why`: of the last one of them."""

    pool: str
    workers: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Launch:
    """A machine that was asked for and has not served yet.

    `confirmed`: the driver has taken the order. `listed`: the driver has listed it; if it does so no more, it is gone.
    """

    pool: str
    asked_s: float
    confirmed: bool = False
    listed: bool = False


@dataclass(frozen=True)
class LearnerState:
    """The learner as the queue knows it.

    `heard`: lately. `figures`: counts that rise as it and its workers get on. `lacks_groups`: it waits for groups for
    which there are tasks, so that it stands still for want of workers. `t_train_s`: of an update, measured or planned.
    """

    heard: bool = True
    figures: tuple[int, ...] = ()
    lacks_groups: bool = False
    t_train_s: float = 0.0


class Ending(StrEnum):
    """How far the dismissal of a machine has come: its workers are to lease nothing more, to leave, or it is ended."""

    rest = "rest"
    leave = "leave"
    end = "end"


@dataclass(frozen=True)
class Dismissal:
    """A machine that is no longer wanted. `since_s`: when this stage began."""

    stage: Ending
    since_s: float


@dataclass(frozen=True)
class Setback:
    """Failures of a pool in a row, in launches or by suspended workers; until `until_s` nothing more is asked of it."""

    failures: int
    until_s: float


@dataclass(frozen=True)
class Memory:
    """The memory of decisions. It is kept in Redis before orders are carried out, so that a successor goes on from it.

    `quiet`: since when a machine that had served has no worker that is heard. `trust`: the share of what workers claim
    that the queue has really got. `pace`: by pool, what a machine gives of what was planned. `doubted`: machines that
    get no credit. `unworthy`: machines whose workers are suspended, by name, also when they are gone. `serving`,
    `starved`, `steady_s`: the machines that served, whether the learner was starved, and since when both are the same.
    `saving_s`: since when a cheaper fleet would do. `ended_usd`: the budget that ended. `silent_s`, `still_s`: for how
    long the learner has not been heard, and has made no progress, as far as somebody looked. `figures`: the highest
    that its figures have been. `why`: the last decision, in words.
    """

    launches: Mapping[str, Launch] = field(default_factory=dict)
    dismissals: Mapping[str, Dismissal] = field(default_factory=dict)
    setbacks: Mapping[str, Setback] = field(default_factory=dict)
    quiet: Mapping[str, float] = field(default_factory=dict)
    trust: float = 1.0
    pace: Mapping[str, float] = field(default_factory=dict)
    doubted: frozenset[str] = frozenset()
    unworthy: Mapping[str, Unworthy] = field(default_factory=dict)
    serving: tuple[str, ...] = ()
    starved: bool = False
    steady_s: float = 0.0
    saving_s: float | None = None
    spent_usd: float = 0.0
    ended_usd: float | None = None
    counted_s: float | None = None
    silent_s: float = 0.0
    still_s: float = 0.0
    figures: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class State:
    """The facts that a decision looks at.

    `needed`: supply with which the learner is as busy as is wanted. `made`: groups per second that the queue has
    accepted lately; None: not known yet. `starved`: the learner waits although the workers are busy. `refused`: names
    that the driver could not start since the last decision. `suspensions`: of all workers, also of those that are gone.
    `hold`: why nothing may be planned; empty if something may.
    `paused`: a person wants the fleet left as it is. `over`: the run is finished, and needs no machine.
    """

    machines: tuple[Machine, ...]
    workers: tuple[Worker, ...]
    needed: float
    made: float | None
    starved: bool
    memory: Memory = Memory()
    refused: frozenset[str] = frozenset()
    suspensions: tuple[Suspension, ...] = ()
    hold: str = ""
    paused: bool = False
    over: bool = False
    learner: LearnerState = LearnerState()


@dataclass(frozen=True)
class Limits:
    """The money that a controller may spend, and its patience.

    `usd_per_hour`, `usd`: for the pools, in an hour and in all. `machines`: of all pools together, those that are
    leaving included. `calm_s`: how long a cheaper fleet must have been possible before anything is dismissed for it.
    `saving`: the least share of the cost that is worth it. `measure_s`: how long the same machines must have served
    before their rates count. `silent_s`: a machine whose workers are silent for longer gets no credit; it is replaced
    and not ended. `lost_s`: it is ended. `rest_s`, `leave_s`: what a dismissed machine has to finish, and to leave.
    `setback_s`, `longest_setback_s`: the pause after a pool's first failed launch, which doubles with each further one.
    `decision_s`: between two decisions. `stall_s`: a learner that is not heard for longer needs no machine.
    """

    usd_per_hour: float = float("inf")
    usd: float = float("inf")
    machines: int = 1000
    calm_s: float = 600.0
    saving: float = 0.02
    measure_s: float = 120.0
    silent_s: float = 90.0
    lost_s: float = 900.0
    rest_s: float = 60.0
    leave_s: float = 60.0
    setback_s: float = 120.0
    longest_setback_s: float = 3600.0
    decision_s: float = 10.0
    stall_s: float = 900.0


@dataclass(frozen=True)
class Start:
    """Start one machine of a pool. `name` is its name, and the token by which a repeated order starts nothing."""

    name: str
    pool: str


@dataclass(frozen=True)
class Rest:
    """Tell the machine's workers to lease nothing more, to finish what they have, and to leave."""

    name: str


@dataclass(frozen=True)
class Leave:
    """Tell the machine's workers to store their partial rollouts, hand their tasks back, and leave."""

    name: str


@dataclass(frozen=True)
class End:
    """End the machine."""

    name: str


Order = Start | Rest | Leave | End


@dataclass(frozen=True)
class Decision:
    """Orders, what is to be remembered, the machines wanted by pool, and one sentence that says why."""

    orders: tuple[Order, ...]
    memory: Memory
    wanted: Mapping[str, int]
    why: str
