"""The loop around the decision: it reads, decides, notes what it is about to do, and does it.

- Of several controllers one leads. What it is about to do is in Redis before it does it, fenced by its term, so a
  controller that was deposed does nothing, and a successor repeats what was under way by the same names.
- If Redis or the driver does not answer, nothing is ordered, and the fleet stays as it is. If Redis has not answered
  for `redis_away_s`, the one that led last ends the machines that it knows of.
- Every decision is logged with what it rests on.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from echo_queue.capacity.fleet_file import Fleet
from echo_queue.errors import DeadlineError, EchoQueueError, FencedError, ServiceError
from echo_queue.fleet import observation
from echo_queue.fleet.decision import decide
from echo_queue.fleet.demand import RECENT, demand, pace_of
from echo_queue.fleet.drivers.protocol import Driver, DriverError
from echo_queue.fleet.memory_codec import decoded, encoded
from echo_queue.fleet.state import End, Leave, Limits, Machine, Memory, Rest, State
from echo_queue.fleet.turn import ControllerTurn
from echo_queue.queue import FleetQueue, Monitor, Status, Term, WorkerOrder
from echo_queue.records import BASE, Version
from echo_queue.reporting.metrics import UpdateMetrics, update_of

log = logging.getLogger(__name__)

TERM_TURNS, TERM_LEAST_S = 3.0, 5.0
"""A leader that has not been heard for so many turns, or so many seconds, is deposed by the next controller."""
STARVED_SHARE = 0.03
"""The learner is starved if it waits for more than this share of its time."""


class Controller:
    """Call `turn` every `fleet.controller.every_s`. Without `act` it neither leads nor orders, and says what it would.

    `now` returns seconds of a clock that does not go back, by which the lead is counted. `as_json`: each decision is
    logged as JSON.
    """

    def __init__(
        self,
        fleet: Fleet,
        queue: FleetQueue,
        monitor: Monitor,
        driver: Driver,
        *,
        act: bool,
        as_json: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._queue = queue
        self._monitor = monitor
        self._driver = driver
        self._act = act
        self._as_json = as_json
        self._now = now
        self._answered_s = now()
        self._known: frozenset[str] = frozenset()
        self._limits = limits_of(fleet)
        self._term = 0
        self._memory = Memory()
        self._refused: frozenset[str] = frozenset()
        self._updates: list[UpdateMetrics] = []
        self._last = BASE
        self._made = observation.AcceptedRate()

    def run(self, stop: threading.Event) -> None:
        """Takes turns until `stop` is set or the run is finished and its machines are gone."""
        while not stop.is_set():
            turn = self.turn()
            if turn and turn.state.over and not turn.state.machines and not turn.decision.memory.launches:
                log.info("the run is finished, and no machine is left")
                break
            stop.wait(self._limits.decision_s)
        if self._term:
            self._resign()

    def turn(self) -> ControllerTurn | None:
        """Takes one turn; returns None if another controller leads, or if something did not answer."""
        try:
            return self._turn()
        except FencedError as error:
            log.warning("%s", error)
            self._term = 0
        except DriverError as error:
            self._answered_s = self._now()
            log.warning("nothing is ordered, and the fleet stays as it is: %s", error)
        except (ServiceError, DeadlineError) as error:
            away_s = self._now() - self._answered_s
            if self._known and away_s >= self._fleet.controller.redis_away_s:
                self._end_unseen(away_s, error)
            else:
                log.warning("nothing is ordered, and the fleet stays as it is: %s", error)
        return None

    def _end_unseen(self, away_s: float, error: EchoQueueError) -> None:
        """Ends the machines that this controller knew when it led last. What another has started since goes on."""
        count = len(self._known)
        log.warning("ends its %d machines, for Redis has not answered for %.0f min: %s", count, away_s / 60, error)
        try:
            self._driver.end(sorted(self._known))
        except DriverError as refused:
            log.warning("they could not be ended, which is tried again: %s", refused)

    def _turn(self) -> ControllerTurn | None:
        began_s = self._now()
        status = self._queue.status()
        self._answered_s = self._now()
        if self._act:
            term = self._queue.lead(self._term_s)
            if not self._leads(term):
                self._known = frozenset()
                return None
            paused, now_s = term.paused, term.now_s
        else:
            paused, now_s = self._monitor.fleet().paused, time.time()
        machines = self._driver.machines()
        turn = self._decided(status, machines, now_s, paused=paused)
        self._say(turn)
        if self._act:
            self._queue.plan(encoded(turn.decision.memory), turn.decision.wanted)
            self._memory = turn.decision.memory
            ours = {machine.name for machine in machines if machine.pool in self._fleet.pools}
            self._known = frozenset(ours | self._memory.launches.keys())
            if self._now() - began_s < self._term_s / 2:
                self._carry_out(turn, status)
            else:
                log.warning("this turn took so long that another controller may lead soon: nothing was ordered")
        else:
            self._memory = _imagined(turn.decision.memory)
        return turn

    @property
    def _term_s(self) -> float:
        return max(TERM_LEAST_S, TERM_TURNS * self._limits.decision_s)

    def _leads(self, term: Term) -> bool:
        """Returns whether this controller leads; what the leader before it remembered is then its own memory."""
        if term.number == 0:
            log.info("%s leads the fleet", term.leader)
        elif term.number != self._term:
            memory = decoded(term.plan)
            if memory is None:
                log.warning("what an earlier controller has noted cannot be read, and is left out")
            log.info("leads the fleet, in term %d", term.number)
            self._memory, self._refused = memory or Memory(), frozenset()
        self._term = term.number
        return term.number > 0

    def _decided(self, status: Status, machines: Sequence[Machine], now_s: float, *, paused: bool) -> ControllerTurn:
        pace = pace_of(self._recent_updates(), self._fleet.learner.t_train_s.value, now_s)
        here = Counter(machine.pool for machine in machines)
        wanted = demand(self._fleet, status.rules, pace, self._driver.offers(), here)
        learner = observation.learner_of(status, pace.t_train_s)
        hold = "" if learner.heard else "no learner is heard, so nobody knows what is needed"
        state = State(
            machines=tuple(machines),
            workers=tuple(observation.workers_of(status, machines)),
            needed=wanted.needed,
            made=self._made.per_s(now_s, status.counts.get("completed", 0)),
            starved=pace.waits > STARVED_SHARE and observation.all_busy(status),
            memory=self._memory,
            refused=self._refused,
            suspensions=tuple(observation.suspensions_of(status, machines)),
            hold=hold or wanted.impossible,
            paused=paused,
            over=status.finished,
            learner=learner,
        )
        return ControllerTurn(decide(state, wanted.offers, self._limits, now_s), wanted, state)

    def _recent_updates(self) -> Sequence[UpdateMetrics]:
        records = self._monitor.updates(self._last)
        if records:
            self._last = max(Version(*record.version) for record in records)
            told = [update for record in records if (update := update_of(record.line))]
            self._updates = [*self._updates, *told][-RECENT:]
        return self._updates

    def _carry_out(self, turn: ControllerTurn, status: Status) -> None:
        """Does what was decided. What fails here is under way by its name, and is repeated in the next turn."""
        decision, machines = turn.decision, {machine.name: machine for machine in turn.state.machines}
        told: Mapping[str, list[str]] = {"rest": [], "leave": []}
        for order in decision.orders:
            if isinstance(order, Rest | Leave) and order.name in machines:
                word = "rest" if isinstance(order, Rest) else "leave"
                told[word].extend(observation.names_on(status, machines[order.name]))
        self._queue.order(WorkerOrder("rest"), told["rest"])
        self._queue.order(WorkerOrder("leave", self._limits.leave_s), told["leave"])
        if ends := [order.name for order in decision.orders if isinstance(order, End)]:
            self._driver.end(ends)
        refused = set()
        for name, launch in decision.memory.launches.items():
            if launch.confirmed:
                continue
            if self._driver.start(name, launch.pool):
                self._confirm(name)
            else:
                refused.add(name)
        self._refused = frozenset(refused)

    def _confirm(self, name: str) -> None:
        launches = dict(self._memory.launches)
        launches[name] = replace(launches[name], confirmed=True)
        self._memory = replace(self._memory, launches=launches)

    def _resign(self) -> None:
        try:
            self._queue.resign()
        except EchoQueueError as error:
            log.info("could not resign; the lead ends by itself: %s", error)

    def _say(self, turn: ControllerTurn) -> None:
        log.info("%s", (turn.document if self._as_json else turn.line)(acts=self._act))


def limits_of(fleet: Fleet) -> Limits:
    """Returns the caps and patience that a fleet file states. The learner's price is part of its budget."""
    rules, usd = fleet.controller, fleet.budget.usd_per_hour
    return Limits(
        usd_per_hour=float("inf") if usd is None else usd - fleet.learner.price.usd_per_hour,
        usd=float("inf") if rules.usd is None else rules.usd,
        machines=rules.machines,
        calm_s=rules.calm_s,
        saving=rules.saving,
        measure_s=rules.measure_s,
        silent_s=rules.silent_s,
        lost_s=rules.lost_s,
        rest_s=rules.rest_s,
        leave_s=rules.leave_s,
        decision_s=rules.every_s,
        stall_s=rules.stall_s,
    )


def _imagined(memory: Memory) -> Memory:
    """Returns the memory without orders that nobody has carried out."""
    return replace(memory, launches={}, dismissals={})
