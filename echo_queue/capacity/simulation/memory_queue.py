"""The queue's decisions in memory, by the rules of `queue/staleness_rules.py`.

It keeps to the order of the Lua functions (`queue/library/`), step by step: what came back is leased first, the oldest
versions are drained first, a step admits, sends back and cancels as many as a step there. It leaves out what a
simulation has no use for: several sets, payloads, lineages, operators and lost replies.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from echo_queue.capacity.simulation.moves import Counts, DrainedTasks, Leased, tokens_of
from echo_queue.queue import RunRules, staleness_rules

ADMIT_MAX = 500
DRAIN_MAX, RETURN_MAX, CANCEL_MAX = 64, 16, 32
"""The steps of `backlog.lua` and `learner.lua`."""
HANDED_BACK_MS = -2
"""The end of a lease that is over before its time."""
FIRST_WINDOW = 2.0


@dataclass(eq=False, slots=True)
class _Task:
    """An admitted task. `entry` numbers its places, so that those which it has left are recognised."""

    id: str
    prompt: int
    min_pv: int
    attempt: int = 0
    late: int = 0
    kept: int = 0
    entry: int = 0
    holder: str | None = None
    leased_ms: int = 0
    """When its lease was last made or renewed by itself."""
    oldest: int = 0
    """The version of its oldest token."""
    partial_oldest: int | None = None
    """That of its partial rollout, of whose newest token `newest` is the version, and of which `done` is generated."""
    newest: int = 0
    done: float = 0.0
    ready: bool = False


class MemoryQueue:
    """A queue with `prompts` prompts in its backlog, before the learner publishes its first version."""

    def __init__(self, rules: RunRules, prompts: int) -> None:
        self.now_s = 0.0
        self._rules, self._prompts = rules, prompts
        self._version, self._published, self._window = 0, -1, FIRST_WINDOW
        self._admitted = self._untrained = 0
        self._open: dict[str, _Task] = {}
        self._tasks, self._retry = deque[_Task](), deque[tuple[_Task, int]]()
        self._in_flight: dict[int, dict[_Task, None]] = defaultdict(dict)
        """Leased tasks by the version of their oldest token."""
        self._awaited: dict[int, int] = defaultdict(int)
        """How many of these were too late before."""
        self._ready: list[tuple[int, int, _Task]] = []
        self._ready_count = self._entries = 0
        self._ends: list[tuple[int, str, int]] = []
        """Leases that are not renewed: when each runs out, the task and its entry."""
        self._held: dict[str, dict[_Task, None]] = defaultdict(dict)
        self._renewed_ms = 0
        self._lost: list[tuple[str, str]] = []
        self._wanted = -1, 0
        """The update for which seats are kept, and since when."""
        self._counts = Counts()

    @property
    def untrained(self) -> int:
        return self._untrained

    def counts(self) -> Counts:
        return self._counts

    # Machines ---------------------------------------------------------------------------------------------------------

    def lease(self, machine: str, version: int, count: int) -> Sequence[Leased]:
        leased: list[Leased] = []
        while len(leased) < count and (task := self._next()) is not None:
            leased.append(self._leased(machine, task, version))
        return leased

    def _next(self) -> _Task | None:
        while self._retry:
            task, entry = self._retry.popleft()
            if task.entry == entry:
                return task
        return self._tasks.popleft() if self._tasks else None

    def _leased(self, machine: str, task: _Task, version: int) -> Leased:
        needs = staleness_rules.needed(self._version, task.min_pv, self._published, self._rules.s)
        if task.partial_oldest is not None:
            if staleness_rules.admissible(self._version, task.partial_oldest, self._rules.s):
                needs = max(needs, task.newest)
            else:
                task.partial_oldest, task.done = None, 0.0
        oldest = task.partial_oldest
        self._put(task)
        task.holder, task.leased_ms = machine, self._now_ms
        self._held[machine][task] = None
        self._fly(task, max(version, needs) if oldest is None else oldest)
        return Leased(task.id, task.prompt, needs, oldest, task.done)

    def begin(self, machine: str, task: str, oldest: int) -> bool:
        found = self._held_by(machine, task)
        if found is None:
            return False
        found.leased_ms = self._now_ms
        self._land(found)
        self._fly(found, oldest)
        return True

    def keep(self, machine: str, task: str, oldest: int, newest: int, done: float) -> bool:
        found = self._held_by(machine, task)
        if found is None:
            return False
        found.partial_oldest, found.newest, found.done = oldest, newest, done
        return True

    def release(self, machine: str, tasks: Sequence[str]) -> None:
        for task in tasks:
            if (found := self._held_by(machine, task)) is not None:
                self._end(found, HANDED_BACK_MS)

    def lose(self, machine: str) -> None:
        for task in self._held.pop(machine, {}):
            self._end(task, max(task.leased_ms, self._renewed_ms) + self._rules.lease_ms)

    def complete(self, machine: str, task: str, oldest: int) -> bool:
        found = self._open.get(task)
        if found is None or found.ready:
            return False
        if not staleness_rules.admissible(self._version, oldest, self._rules.s):
            self._counts = replace(self._counts, late=self._counts.late + 1)
            if found.holder == machine:
                self._land(found)
                self._fly(found, oldest)
                self._end(found, HANDED_BACK_MS)
            return False
        self._leave(found, told=machine)
        found.ready, found.oldest = True, oldest
        self._ready_count += 1
        heapq.heappush(self._ready, (oldest, found.entry, found))
        return True

    def renew(self) -> Sequence[tuple[str, str]]:
        self._renewed_ms = self._now_ms
        lost, self._lost = self._lost, []
        return [(machine, task) for machine, task in lost if self._held_by(machine, task) is None]

    # The learner and its housekeeper ----------------------------------------------------------------------------------

    def sweep(self) -> None:
        while self._ends and self._ends[0][0] <= self._now_ms:
            ended_ms, name, entry = heapq.heappop(self._ends)
            task = self._open.get(name)
            if task is None or task.entry != entry:
                continue
            if ended_ms == HANDED_BACK_MS:
                too_late = not staleness_rules.admissible(self._version, task.oldest, self._rules.s)
                self._send_back(task, too_late=too_late)
            else:
                self._end_attempt(task)
        while self._cancel_late(CANCEL_MAX):
            pass
        self._admit()

    def drain(self, need: int) -> DrainedTasks:
        taken: list[str] = []
        late, more = 0, True
        while more:
            step_late = self._send_late_back()
            seats = self._seats()
            # A step that has sent back as much as it may hands nothing out.
            most = 0 if step_late == RETURN_MAX else DRAIN_MAX
            step = min(need - len(taken) - seats, most, self._ready_count)
            for _ in range(max(0, step)):
                taken.append(heapq.heappop(self._ready)[2].id)
                self._ready_count -= 1
            late += step_late
            more = (step == DRAIN_MAX or step_late == RETURN_MAX) and len(taken) < need
            self._admit()
        self._counts = replace(self._counts, late=self._counts.late + late)
        return DrainedTasks(taken, self._ready_count, late, seats)

    def advance(self, version: int, trained: Sequence[str], window: float) -> None:
        self._version, self._window = version, window
        self._untrained -= len(trained)
        self._cancel_late(CANCEL_MAX)
        self._admit()
        for task in trained:
            del self._open[task]

    def publish(self, version: int) -> None:
        self._published = version
        self._admit()

    def _admit(self) -> None:
        rules, most = self._rules, min(self._admitted + ADMIT_MAX, self._prompts)
        while self._admitted < most:
            oldest = staleness_rules.min_pv(self._version, self._untrained, rules.batch, rules.s)
            if not staleness_rules.within_bound(oldest, self._published if self._published >= 0 else None):
                return
            if rules.pace and not staleness_rules.within_window(self._untrained, rules.batch, self._window):
                return
            task = _Task(f"p/0/{self._admitted}", self._admitted, oldest)
            self._open[task.id] = task
            self._tasks.append(task)
            self._admitted, self._untrained = self._admitted + 1, self._untrained + 1

    def _seats(self) -> int:
        """Returns the number of seats kept for groups that would be too late after the next update."""
        oldest = self._version - self._rules.s
        waited_for = self._rules.late == "wait"
        kept = len(self._in_flight.get(oldest, ())) if waited_for else self._awaited.get(oldest, 0)
        if kept == 0:
            return 0
        if self._wanted[0] != self._version:
            self._wanted = self._version, self._now_ms
        return kept if self._now_ms - self._wanted[1] < self._rules.late_deadline_ms else 0

    def _send_late_back(self) -> int:
        """Sends back what is ready and too old, as much as one step does. Returns how many went."""
        back = 0
        while back < RETURN_MAX and self._ready:
            oldest, _, task = self._ready[0]
            if staleness_rules.admissible(self._version, oldest, self._rules.s):
                break
            heapq.heappop(self._ready)
            self._ready_count -= 1
            task.ready = False
            self._send_back(task, too_late=True)
            back += 1
        return back

    def _cancel_late(self, most: int) -> int:
        """Sends back tasks in flight that can no longer be trained. Returns how many went."""
        late = sorted(version for version, tasks in self._in_flight.items() if tasks)
        back = 0
        for version in late:
            if staleness_rules.admissible(self._version, version, self._rules.s) or back == most:
                break
            for task in sorted(self._in_flight[version], key=lambda task: task.id)[: most - back]:
                self._send_back(task, too_late=True)
                back += 1
        self._counts = replace(self._counts, cancelled=self._counts.cancelled + back)
        return back

    # Places -----------------------------------------------------------------------------------------------------------

    @property
    def _now_ms(self) -> int:
        return round(1000 * self.now_s)

    def _held_by(self, machine: str, task: str) -> _Task | None:
        found = self._open.get(task)
        return found if found is not None and found.holder == machine else None

    def _put(self, task: _Task) -> None:
        self._entries += 1
        task.entry = self._entries

    def _fly(self, task: _Task, oldest: int) -> None:
        task.oldest = oldest
        self._in_flight[oldest][task] = None
        self._awaited[oldest] += task.late > 0

    def _land(self, task: _Task) -> None:
        del self._in_flight[task.oldest][task]
        self._awaited[task.oldest] -= task.late > 0
        if not self._in_flight[task.oldest]:
            del self._in_flight[task.oldest], self._awaited[task.oldest]

    def _end(self, task: _Task, when_ms: int) -> None:
        heapq.heappush(self._ends, (when_ms, task.id, task.entry))

    def _leave(self, task: _Task, told: str | None = None) -> None:
        """Takes a task from its place, and from the machine that holds it, which hears of it unless it was `told`."""
        if task.holder is not None:
            self._land(task)
            if task.holder in self._held:
                self._held[task.holder].pop(task, None)
                if task.holder != told:
                    self._lost.append((task.holder, task.id))
        task.holder = None
        self._put(task)

    def _end_attempt(self, task: _Task) -> None:
        tokens = tokens_of(task.done)
        attempt = task.attempt if tokens > task.kept else task.attempt + 1
        if attempt < self._rules.max_attempts:
            task.attempt, task.kept = attempt, tokens
            self._counts = replace(self._counts, expired=self._counts.expired + 1)
            self._send_back(task, too_late=False)
            return
        self._leave(task)
        del self._open[task.id]
        self._untrained -= 1
        self._counts = replace(self._counts, dead=self._counts.dead + 1)

    def _send_back(self, task: _Task, *, too_late: bool) -> None:
        self._leave(task)
        task.late += too_late
        task.min_pv = self._published
        self._retry.append((task, task.entry))
