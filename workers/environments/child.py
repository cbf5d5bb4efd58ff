"""The scoring process that `scorer.py` starts: `main(FD, PARENT, ENVIRONMENT_JSON)`.

On the socket FD (`pipe.py`) the process answers a `ScoringRequest` with `Rewards`, a `Turn` with a `Reply`, and either
with `Failed`, until the socket closes. It ignores SIGINT and SIGTERM, since its parent decides when it ends, and dies
with its parent even while the environment hangs.
"""

import ctypes
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import Any

import orjson

from echo_queue.errors import ConfigError, Problem
from workers.environments.pipe import Pipe
from workers.environments.protocol import EnvironmentSettings, Reply, ScoringRequest, Turn
from workers.environments.registry import create
from workers.environments.sessions import Sessions
from workers.environments.tracebacks import FRAMES_MAX, Frame, UserModule, formatted

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Ready:
    """Says that the environment is made."""


@dataclass(frozen=True)
class Unfit:
    """Says that the environment cannot be made on this machine."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Rewards:
    """The rewards of all completions, in order."""

    values: list[float]


@dataclass(frozen=True)
class Failed:
    """The traceback of an environment that raised, and its last frames in the user's module, the innermost last.

    The traceback ends with the place of the innermost of them, if there is any.
    """

    traceback: str
    frames: list[Frame]


Answer = Ready | Unfit | Rewards | Reply | Failed


def message_of(answer: Answer) -> list[Any]:
    """Returns the answer as a message; `answer_of` is the inverse."""
    return [type(answer).__name__, answer]


def answer_of(message: Any) -> Answer:
    """Returns the answer in a message. Raises `ValueError` for any other message."""
    match message:
        case ["Ready", _]:
            return Ready()
        case ["Unfit", {"problems": [*problems]}]:
            return Unfit(tuple(_problem(problem) for problem in problems))
        case ["Rewards", {"values": [*values]}] if all(isinstance(value, float) for value in values):
            return Rewards(values)
        case ["Reply", {"observation": str(text), "reward": None}]:
            return Reply(text, None)
        case ["Reply", {"observation": None, "reward": float(reward)}]:
            return Reply(None, reward)
        case ["Failed", {"traceback": str(text), "frames": [*frames]}]:
            return Failed(text, [_frame(frame) for frame in frames[-FRAMES_MAX:]])
    raise ValueError(f"not an answer: {str(message)[:200]}")


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
        pipe.send(message_of(Unfit(error.problems)), None)
        return
    except Exception as error:
        where = f"environment.{'function' if settings.function else 'kind'}"
        pipe.send(message_of(Unfit((Problem(where, formatted(error), "fix the error that it raised"),))), None)
        return
    users = UserModule.of(settings.function)
    pipe.send(message_of(Ready()), None)
    while True:
        try:
            message = pipe.receive(None)
        except EOFError:
            return
        try:
            reply: Answer = answer(message)
        except Exception as error:
            frames = users.frames(error)
            reply = Failed(formatted(error, frames), frames)
        pipe.send(message_of(reply), None)


def answerer(settings: EnvironmentSettings) -> Callable[[dict[str, Any]], Rewards | Reply]:
    """Returns the function that answers messages. Raises `ConfigError` if the environment cannot be made here."""
    environment: Any = create(settings)
    if hasattr(environment, "start"):
        sessions = Sessions(environment, settings.max_turns)
        return lambda message: checked_reply(sessions.reply(Turn(**message)))

    def score(message: dict[str, Any]) -> Rewards:
        request = ScoringRequest(**message)
        return Rewards(checked_rewards(environment.score(request), len(request.completions)))

    return score


def checked_reply(reply: Reply) -> Reply:
    """Returns the reply with its reward as a float. Raises `ValueError` if the reward is not a finite number."""
    return reply if reply.reward is None else Reply(None, *checked_rewards([reply.reward], 1))


def checked_rewards(rewards: Any, count: int) -> list[float]:
    """Returns `rewards` as `count` finite floats. Raises `ValueError` naming the one that is not."""
    if isinstance(rewards, str | bytes | Mapping | Set) or not _has_length(rewards):
        what = "None" if rewards is None else _a(type(rewards).__name__)
        raise ValueError(f"the reward function returned {what}; return a list with one number per completion")
    if len(rewards) != count:
        what = f"the environment was given {count} completions and returned a list of length {len(rewards)}"
        raise ValueError(what)
    return [_checked_reward(reward, position) for position, reward in enumerate(rewards)]


def _checked_reward(reward: Any, position: int) -> float:
    """Returns the reward as a finite float. A text is refused even if it is written like a number."""
    try:
        value = math.nan if isinstance(reward, str | bytes | bytearray) else float(reward)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if math.isfinite(value):
        return value
    kind = "" if reward is None or isinstance(reward, float) else f", of type {type(reward).__name__},"
    raise ValueError(f"the environment returned {shortened(reward)}{kind} as reward {position}")


def _a(kind: str) -> str:
    return f"a{'n' if kind[0] in 'aeiou' else ''} {kind}"


def _has_length(rewards: Any) -> bool:
    """Returns whether `rewards` has a length, which an array of no dimensions has not."""
    try:
        len(rewards)
    except TypeError:
        return False
    return True


def die_with(parent: int) -> None:
    """Asks Linux for SIGKILL when the parent ends; on other systems a hanging environment would outlive its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent ended first")


def main(descriptor: str, parent: str, config: str) -> None:
    die_with(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    section = orjson.loads(config)
    settings = EnvironmentSettings(section["kind"], section["function"], section["options"], section["max_turns"])
    serve(Pipe(socket.socket(fileno=int(descriptor))), settings)
