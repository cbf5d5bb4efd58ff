"""The environment's process, which `scorer.py` starts below a keeper (`keeper.py`): `main(FD, ENVIRONMENT_JSON)`.

- On the socket FD (`pipe.py`) it answers a `ScoringRequest` with `Rewards`, a `Turn` with a `Reply`, and either with
  `Failed`, until the socket closes. An answer bears its question's number; calls that wait are answered side by side.
- Before its answer, a call may say `Within` which function it is, and what judges have `Spent`.
- Signals that ask it to end do nothing (`keeper.py`); processes that the environment starts have the usual handlers.
- No process that the environment forks speaks for it: the socket is closed there, and one that comes back ends.
"""

import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from echo_queue.errors import ConfigError, Problem
from workers.environments import forks
from workers.environments.checked_rewards import RewardError, checked_rewards
from workers.environments.pipe import Pipe
from workers.environments.protocol import EnvironmentSettings, Reply, Rewards, ScoringRequest, Spent, Tell, Turn, Within
from workers.environments.registry import create
from workers.environments.sessions import Sessions
from workers.environments.tracebacks import FRAMES_MAX, Frame, UserModules, formatted

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True)
class Ready:
    """Says that the environment is made, and once more that its calls wait for something, so that it takes several."""

    asynchronous: bool = False


@dataclass(frozen=True)
class Cancelled:
    """Confirms that a call is cancelled."""


@dataclass(frozen=True)
class Unfit:
    """Says that the environment cannot be made on this machine."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Failed:
    """The traceback of an environment that raised, and its last frames in the user's modules, the innermost last.

    The traceback ends with the name of the reward function, where there are several, and with the innermost place.
    """

    traceback: str
    frames: list[Frame]


COUNTED = 1 << 53
"""Less than this is counted exactly by everyone who reads a heartbeat."""

Answer = Ready | Cancelled | Unfit | Within | Spent | Rewards | Reply | Failed
Answerer = Callable[[dict[str, Any], Tell], Coroutine[Any, Any, Rewards | Reply]]


def message_of(answer: Answer, number: int = 0) -> list[Any]:
    """Returns the answer to call `number` as a message; `answer_of` is the inverse but for the number."""
    return [number, type(answer).__name__, answer]


def answer_of(message: Any) -> Answer:
    """Returns the answer in a message, without its number. Raises `ValueError` for any other message."""
    match message:
        case ["Ready", {"asynchronous": bool(asynchronous)}]:
            return Ready(asynchronous)
        case ["Cancelled", _]:
            return Cancelled()
        case ["Within", {"names": [*names]}]:
            return Within(tuple(map(str, names)))
        case ["Spent", {"calls": int(calls), "tokens": int(tokens)}] if (
            0 <= min(calls, tokens) <= calls + tokens < COUNTED
        ):
            return Spent(calls, tokens)
    return _outcome_of(message)


def _outcome_of(message: Any) -> Answer:
    match message:
        case ["Unfit", {"problems": [*problems]}]:
            return Unfit(tuple(_problem(problem) for problem in problems))
        case ["Rewards", {"values": [*values], "parts": dict(parts)}] if all(
            map(_are_floats, (values, *parts.values()))
        ):
            return Rewards(values, {str(name): column for name, column in parts.items()})
        case ["Reply", {"observation": str(text), "reward": None}]:
            return Reply(text, None)
        case ["Reply", {"observation": None, "reward": float(reward)}]:
            return Reply(None, reward)
        case ["Failed", {"traceback": str(text), "frames": [*frames]}]:
            return Failed(text, [_frame(frame) for frame in frames[-FRAMES_MAX:]])
    raise ValueError(f"not an answer: {str(message)[:200]}")


def _are_floats(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, float) for value in values)


def _problem(message: Any) -> Problem:
    match message:
        case {"where": str(where), "what": str(what), "fix": str(fix)}:
            return Problem(where, what, fix)
    raise ValueError(f"not a problem: {str(message)[:200]}")


def _frame(message: Any) -> Frame:
    match message:
        case {"file": str(file), "line": int(line), "function": str(function)}:
            return Frame(file, line, function)
    raise ValueError(f"not a frame: {str(message)[:200]}")


def serve(pipe: Pipe, settings: EnvironmentSettings) -> None:
    """Makes the environment and answers messages until the pipe closes."""
    try:
        answer = answerer(settings)
    except ConfigError as error:
        pipe.send(message_of(Unfit(error.problems)))
        return
    except BaseException as error:
        where = f"environment.{'function' if settings.function else 'kind'}"
        pipe.send(message_of(Unfit((Problem(where, formatted(error), "fix the error that it raised"),))))
        return
    pipe.send(message_of(Ready()))
    own = [reward["function"] for reward in settings.rewards.values()]
    Server(pipe, answer, UserModules.of(own or [settings.function])).run()


class Server:
    """Answers the calls that come through the pipe: one after the other, or side by side where they wait.

    What is not a coroutine runs outside of the event loop, so that it may run one of its own.
    """

    def __init__(self, pipe: Pipe, answer: Answerer, users: UserModules) -> None:
        self._pipe = pipe
        self._answer = answer
        self._users = users
        self._own = os.getpid()
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        with suppress(EOFError):
            while True:
                if self._waiting:
                    self._until_readable()
                number, what, body = self._pipe.receive()
                if what == "cancel":
                    self._cancel(number)
                else:
                    self._begin(number, body)

    def _begin(self, number: int, body: dict[str, Any]) -> None:
        call = self._answered(number, body)
        try:
            call.send(None)
        except StopIteration:
            return
        if self._loop is None:
            import asyncio  # not sooner: most environments need none, and it takes a while
            import selectors

            self._loop = asyncio.SelectorEventLoop(selectors.PollSelector())  # of which forks share nothing
            self._loop.add_reader(self._pipe.descriptor, self._loop.stop)
            self._pipe.send(message_of(Ready(asynchronous=True)))
        self._waiting[number] = self._loop.create_task(call)

    async def _answered(self, number: int, body: dict[str, Any]) -> None:
        """Answers a call. Until it first waits, this is run by hand."""
        try:
            answer: Answer = await self._answer(body, partial(self._tell, number))
        except BaseException as error:
            self._end_if_forked(1)
            answer = self._failed(error)
        self._end_if_forked(0)
        self._waiting.pop(number, None)
        self._pipe.send(message_of(answer, number))

    def _tell(self, number: int, what: Within | Spent) -> None:
        self._end_if_forked(0)
        self._pipe.send(message_of(what, number))

    def _failed(self, error: BaseException) -> Failed:
        name = ""
        if isinstance(error, RewardError) and error.__cause__:
            name, error = str(error), error.__cause__
        frames = self._users.frames(error)
        return Failed(formatted(error, frames, name), frames)

    def _cancel(self, number: int) -> None:
        if number in self._waiting:
            self._waiting.pop(number).cancel()
        self._pipe.send(message_of(Cancelled(), number))

    def _until_readable(self) -> None:
        """Lets the calls go on until another message comes."""
        assert self._loop is not None
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt):  # of a task that a call has made, which gets it, too
            self._end_if_forked(1)

    def _end_if_forked(self, code: int) -> None:
        """Ends a process that the environment has forked and that came back from it."""
        if os.getpid() != self._own:
            os._exit(code)


def answerer(settings: EnvironmentSettings) -> Answerer:
    """Returns the function that answers messages. Raises `ConfigError` if the environment cannot be made here."""
    environment: Any = create(settings)
    if hasattr(environment, "start"):
        sessions = Sessions(environment, settings.max_turns)

        async def reply(message: dict[str, Any], tell: Tell) -> Reply:
            return checked_reply(await sessions.reply(Turn(**message)))

        return reply

    async def score(message: dict[str, Any], tell: Tell) -> Rewards:
        request = ScoringRequest(**message)
        scored: Rewards = await environment.score(request, tell)
        return Rewards(checked_rewards(scored.values, len(request.completions)), scored.parts)

    return score


def checked_reply(reply: Reply) -> Reply:
    """Returns the reply with its reward as a float. Raises `ValueError` if the reward is not a finite number."""
    return reply if reply.reward is None else Reply(None, *checked_rewards([reply.reward], 1))


def main(descriptor: str, config: str) -> None:
    connection = socket.socket(fileno=int(descriptor))
    forks.prepare(connection)
    section = orjson.loads(config)
    keys = ("kind", "function", "options", "max_turns", "rewards")
    settings = EnvironmentSettings(**{key: section[key] for key in keys})
    serve(Pipe(connection), settings)
