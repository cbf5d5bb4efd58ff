"""The environment of one worker: its processes, and the calls that they have or that wait for one.

- A call is answered with rewards or with a reply, or else with a `ScoringError`, which costs its task an attempt. One
  that raises, hangs or dies costs no other task one: calls that its process had beside it are asked again.
- The oldest calls go first. The calls of one session go to the process that has the session, as long as that lives.
- There is one process at first, and one more whenever a call has waited for `GROW_AFTER_S` while all are busy, up to
  `environment.processes`. A process that hangs or dies is ended with all that it started, and replaced.
- An environment that cannot be made at all is a `ConfigError`, since it would fail every task. One that was made before
  may only find no memory for a while: its start is tried again, after longer and longer pauses.

One thread uses it at a time; `wake` and `close` may be called from any.
"""

import logging
import os
import select
import socket
import threading
import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress

from echo_queue.config import INTERACTIVE, Config
from echo_queue.config import Environment as EnvironmentConfig
from echo_queue.errors import ConfigError, DeadlineError, EchoQueueError, Problem
from echo_queue.queue.counts import counted
from workers.environments.calls import Call, ScoringError
from workers.environments.checked_rewards import checked_rewards
from workers.environments.child import Answer, Cancelled, Failed, Ready, Unfit, checked_reply
from workers.environments.process import EnvironmentProcess
from workers.environments.protocol import Reply, Rewards, ScoringRequest, Spent, Turn
from workers.environments.sessions import SESSIONS_MAX

log = logging.getLogger(__name__)

START_DEADLINE_S = 120.0
"""Long enough to import a large environment from a cold disk."""
GROW_AFTER_S = 0.5
START_AGAIN_S = 4.0
"""The pause after a failed start. Each further one in a row doubles it, up to `PAUSE_MAX_S`."""
PAUSE_MAX_S = 3600.0
STARTS_MAX = 5
"""The failed starts in a row after which an environment without any process is given up."""
CANCEL_S = 5.0
"""The longest time until a process confirms that it has cancelled a call; after that it hangs."""
LOOK_S = 0.1
"""The time between two looks at deadlines."""


def environments_of(config: Config) -> list[EnvironmentConfig]:
    """Returns the distinct environments of a run: those of what is trained, then those that only evaluations have.

    A worker has a scorer for each of them from its start on, so that one that cannot be made is refused before the
    first lease and not in the middle of the run.
    """
    found = list(config.trained_environments)
    for evaluation in config.evaluation:
        if (environment := config.environment_of(evaluation.name)) not in found:
            found.append(environment)
    return found


def most_processes(config: EnvironmentConfig) -> int:
    """Returns the most processes that an environment has on this machine."""
    return config.processes or max(2, os.cpu_count() or 1)


class Scorer:
    def __init__(self, config: EnvironmentConfig) -> None:
        """Starts the first process, without waiting for it."""
        self.spent = Spent()
        """What judges have cost since the beginning, but for calls of which a process died."""
        self._config = config
        self.interactive = config.kind in INTERACTIVE
        self._most = most_processes(config)
        self._waiting: list[Call] = []
        self._ended: list[Call] = []
        self._homes: OrderedDict[Hashable, EnvironmentProcess] = OrderedDict()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._closed, self._spawning = False, threading.Lock()
        self._by_descriptor: dict[int, EnvironmentProcess] = {}
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._grown_s = self._looked_s = self._start_again_s = 0.0
        self._made, self._failed_starts = False, 0
        self._spared = set[EnvironmentProcess]()
        self._grow()

    @property
    def processes(self) -> list[EnvironmentProcess]:
        return list(self._by_descriptor.values())

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a process."""
        return len(self._waiting)

    @property
    def under_way(self) -> int:
        """The number of calls that processes have."""
        return sum(len(process.all_calls) for process in self.processes)

    def wait_ready(self) -> None:
        """Waits for the environment. Raises `ConfigError` if it cannot be made, `DeadlineError` if that is too slow."""
        while not any(process.ready for process in self.processes):
            self._turn(LOOK_S)

    def ask(self, call: Call) -> None:
        """Takes a call, which `wait` will return once it has ended."""
        call.asked_s = time.monotonic()
        insort(self._waiting, call, key=lambda one: one.age)

    def wait(self, timeout_s: float) -> list[Call]:
        """Returns the calls that have ended; waits for one, for `wake` or for `timeout_s`."""
        give_up = time.monotonic() + timeout_s
        while True:
            self._hand_out()
            look_s = LOOK_S if self._waiting or self.under_way else timeout_s
            woken = self._turn(0.0 if self._ended else max(0.0, min(look_s, give_up - time.monotonic())))
            if self._ended or woken or time.monotonic() >= give_up:
                self._hand_out()
                ended, self._ended = self._ended, []
                return ended

    def wake(self) -> None:
        """Ends the `wait` of another thread."""
        with suppress(OSError):  # it is awake, or closed
            self._wake.send(b".")

    def forget_waiting(self) -> None:
        """Drops the calls that no process has."""
        self._waiting.clear()

    def close(self) -> None:
        """Ends the processes and all that they started."""
        with self._spawning:
            self._closed = True
        for process in self.processes:
            process.close()
        self._wake.close()

    # One turn of the loop: hear what has come, then see who is late ---------------------------------------------------

    def _turn(self, timeout_s: float) -> bool:
        """Hears the processes. Returns whether the thread was woken."""
        woken, heard = False, set[EnvironmentProcess]()
        for descriptor, event in self._poll.poll(1000 * timeout_s):
            process = self._by_descriptor.get(descriptor)
            if process is None:
                woken = True
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
                continue
            if event & select.POLLOUT:
                process.channel.flush()
                self._watch(process)
            if event & ~select.POLLOUT:
                heard.add(process)
                self._hear(process)
        now_s = time.monotonic()
        if now_s > self._looked_s + LOOK_S:
            # One that was heard just now may have more to say, after a pause of this thread; one that is heard at every
            # look may still be late.
            self._looked_s, self._spared = now_s, heard - self._spared
            for process in [one for one in self.processes if one not in self._spared]:
                self._look_at_deadlines(process, now_s)
        return woken

    def _watch(self, process: EnvironmentProcess) -> None:
        """Listens to a process, and also waits until it takes what is left to send."""
        self._poll.register(
            process.channel.descriptor, select.POLLIN | (select.POLLOUT if process.channel.has_unsent else 0)
        )

    def _hear(self, process: EnvironmentProcess) -> None:
        try:
            for call, answer in process.hear():
                if call is not None:
                    self._end(call, answer)
                elif isinstance(answer, Spent):
                    self.spent += answer
                elif isinstance(answer, Ready):
                    self._made, self._failed_starts = True, 0
                elif isinstance(answer, Unfit):
                    self._remove(process)
                    self._cannot_start(ConfigError(*answer.problems))
        except ValueError as error:
            self._lose(process, f"the environment's process wrote into the scorer's pipe: {error}")
        except (OSError, EOFError):
            self._lose(process, "the environment's process ended with {code} (negative: the signal)")

    def _look_at_deadlines(self, process: EnvironmentProcess, now_s: float) -> None:
        if not process.ready and now_s > process.started_s + START_DEADLINE_S:
            what = f"the {self._config.kind} environment was not ready within {START_DEADLINE_S:.0f} s"
            fix = "check what its module does when imported"
            self._remove(process)
            self._cannot_start(DeadlineError(Problem("environment", what, fix)))
            return
        for number in [number for number, call in process.calls.items() if now_s > call.late_s]:
            process.cancel(number)
            self._watch(process)
        if process.cancelled and (not process.asynchronous or now_s > process.cancelled_s + CANCEL_S):
            self._lose(process, self._late)

    @property
    def _late(self) -> str:
        return f"the environment took longer than environment.timeout_s = {self._config.timeout_s}"

    # Calls ------------------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Gives calls to the processes that have room, the oldest first, and adds a process if all are busy."""
        left = list[Call]()
        for number, call in enumerate(self._waiting):
            if not any(process.has_room(call) for process in self.processes):
                left += self._waiting[number:]
                break
            if (process := self._place(call)) is None:
                left.append(call)
            else:
                self._ask(process, call)
        else:
            self._waiting = left
            return
        self._waiting = left
        count = len(self._by_descriptor)
        if count < self._most and (not count or time.monotonic() - max(left[0].asked_s, self._grown_s) > GROW_AFTER_S):
            self._grow()

    def _ask(self, process: EnvironmentProcess, call: Call) -> None:
        try:
            process.ask(call)
            if process.channel.has_unsent:
                self._watch(process)
        except TypeError as error:
            process.calls = {number: one for number, one in process.calls.items() if one is not call}
            self._fail(call, f"the question to the environment cannot be written as JSON: {error}")

    def _place(self, call: Call) -> EnvironmentProcess | None:
        """Returns the process that is to have the call now: that of its session, or the one with the fewest calls."""
        home = self._homes.get(call.session)
        among = self.processes if home is None or call.alone else [home]
        free = [process for process in among if process.has_room(call)]
        chosen = min(free, key=lambda process: len(process.all_calls), default=None)
        if chosen is not None and call.session is not None:
            self._homes[call.session] = chosen
            self._homes.move_to_end(call.session)
            if len(self._homes) > SESSIONS_MAX:
                self._homes.popitem(last=False)
        return chosen

    def _end(self, call: Call, answer: Answer) -> None:
        """Ends a call with the answer to it."""
        try:
            match call.question, answer:
                case ScoringRequest(), Rewards():
                    count = len(call.question.completions)
                    parts = {name: checked_rewards(values, count) for name, values in answer.parts.items()}
                    call.answer = Rewards(checked_rewards(answer.values, count), parts)
                case Turn(), Reply():
                    call.answer = checked_reply(answer)
                case _, Cancelled():
                    call.answer = call.unanswered(self._late)
                case _, Failed():
                    call.answer = ScoringError(answer.traceback, answer.frames)
                case _:
                    raise ValueError(f"unexpected answer {answer!r}")
        except ValueError as error:
            call.answer = ScoringError(f"the environment's process wrote into the scorer's pipe: {error}")
        if not isinstance(call.answer, Reply) or call.answer.observation is None:
            self._homes.pop(call.session, None)
        self._ended.append(call)

    def _fail(self, call: Call, reason: str) -> None:
        call.answer = call.unanswered(reason)
        self._homes.pop(call.session, None)
        self._ended.append(call)

    # Processes --------------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Starts another process, unless a start has failed just now."""
        if time.monotonic() < self._start_again_s:
            return
        with self._spawning:
            try:
                if not self._closed:
                    process = EnvironmentProcess(self._config)
                    self._by_descriptor[process.channel.descriptor] = process
                    self._watch(process)
            except OSError as error:
                fix = "see this machine's memory and its limits (`ulimit -a`)"
                self._cannot_start(ConfigError(Problem("environment", f"its process cannot be started: {error}", fix)))
        self._grown_s = time.monotonic()

    def _lose(self, process: EnvironmentProcess, reason: str) -> None:
        """Ends a process that has ended, hangs or spoke out of turn, and starts another.

        If it had a single call, that is why. Several are asked again, each in a process where it is alone. One that had
        none is replaced once a call needs it, so that one that always ends soon is not started again and again.
        """
        code = self._remove(process)
        if not process.ready:
            what = f"the {self._config.kind} environment's process ended with {code} while starting"
            self._cannot_start(ConfigError(Problem("environment", what, "see its output above")))
            return
        reason, calls = reason.replace("{code}", str(code)), process.all_calls
        if len(calls) == 1:
            self._fail(calls[0], reason)
        else:
            had = counted(len(calls), "call", "is", "are") + " asked again" if calls else "it had no call"
            log.warning("%s; %s", reason, had)
            for call in calls:
                call.alone = True
                self.ask(call)
        if calls:
            self._grow()

    def _cannot_start(self, error: EchoQueueError) -> None:
        """Goes on with fewer processes for a while.

        Raises `error` if there is none left, and there was none before or the start has failed again and again.
        """
        count = len(self._by_descriptor)
        self._failed_starts += 1
        if not count and (not self._made or self._failed_starts >= STARTS_MAX):
            raise error
        pause_s = min(START_AGAIN_S * 2 ** (self._failed_starts - 1), PAUSE_MAX_S)
        self._start_again_s = time.monotonic() + pause_s
        if self._failed_starts == 1:
            log.warning("the environment goes on with %d of its processes, and starts others later: %s", count, error)

    def _remove(self, process: EnvironmentProcess) -> int:
        self._poll.unregister(process.channel.descriptor)
        del self._by_descriptor[process.channel.descriptor]
        for session in [one for one, home in self._homes.items() if home is process]:
            del self._homes[session]
        return process.close()
