"""The scoring process that `scorer.py` starts: `main(FD, PARENT, ENVIRONMENT_JSON)`.

On the socket FD (`pipe.py`) it answers `Answers` with `Rewards`, a `Turn` with a `Reply`, and either with `Failed`,
until the socket closes. It ignores SIGINT and SIGTERM, since its parent decides when it ends, and dies with its parent
even while the environment hangs.
"""

import ctypes
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from echo_queue.config import INTERACTIVE
from echo_queue.config import Environment as EnvironmentConfig
from echo_queue.errors import ConfigError, Problem
from workers.environments import Answers, Reply, Turn, create
from workers.environments.pipe import Pipe
from workers.environments.sessions import Sessions

PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Ready:
    """The environment is made."""


@dataclass(frozen=True)
class Unfit:
    """The environment cannot be had on this machine."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Rewards:
    values: list[float]


@dataclass(frozen=True)
class Failed:
    traceback: str


Answer = Ready | Unfit | Rewards | Reply | Failed


def told(answer: Answer) -> list[Any]:
    """As a message; `heard` is the inverse."""
    return [type(answer).__name__, answer]


def heard(message: Any) -> Answer:
    """Raises `ValueError` for what is no answer."""
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
        case ["Failed", {"traceback": str(text)}]:
            return Failed(text)
    raise ValueError(f"no answer: {str(message)[:200]}")


def _problem(message: Any) -> Problem:
    match message:
        case {"where": str(where), "what": str(what), "fix": str(fix)}:
            return Problem(where, what, fix)
    raise ValueError(f"no problem: {str(message)[:200]}")


def serve(pipe: Pipe, config: EnvironmentConfig) -> None:
    try:
        answer = answerer(config)
    except ConfigError as error:
        pipe.send(told(Unfit(error.problems)), None)
        return
    except Exception:
        where = f"environment.{'function' if config.function else 'kind'}"
        pipe.send(told(Unfit((Problem(where, _traceback(), "fix what it raised"),))), None)
        return
    pipe.send(told(Ready()), None)
    while True:
        try:
            asked = pipe.receive(None)
        except EOFError:
            return
        try:
            said: Answer = answer(asked)
        except Exception:
            said = Failed(_traceback())
        pipe.send(told(said), None)


def answerer(config: EnvironmentConfig) -> Callable[[dict[str, Any]], Rewards | Reply]:
    """What the environment says to a message. Raises `ConfigError` if the environment cannot be had here."""
    environment: Any = create(config)
    if config.kind in INTERACTIVE:
        sessions = Sessions(environment, config.max_turns)
        return lambda asked: replied(sessions.reply(Turn(**asked)))

    def score(asked: dict[str, Any]) -> Rewards:
        answers = Answers(**asked)
        return Rewards(checked(environment.score(answers), len(answers.completions)))

    return score


def replied(reply: Reply) -> Reply:
    """Raises `ValueError` for a reward that is none."""
    return reply if reply.reward is None else Reply(None, *checked([reply.reward], 1))


def checked(rewards: Sequence[Any], count: int) -> list[float]:
    """`rewards` as `count` finite floats. Raises `ValueError` saying which is not."""
    if len(rewards) != count:
        raise ValueError(f"the environment returned {len(rewards)} rewards for {count} completions")
    for position, reward in enumerate(rewards):
        if reward is None or not math.isfinite(float(reward)):
            raise ValueError(f"the environment returned {reward!r} as reward {position}")
    return [float(reward) for reward in rewards]


def die_with(parent: int) -> None:
    """Asks Linux for SIGKILL when the parent ends; elsewhere a hanging environment would outlive it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent ended first")


def main(descriptor: str, parent: str, config: str) -> None:
    die_with(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(Pipe(socket.socket(fileno=int(descriptor))), EnvironmentConfig.model_validate_json(config))


def _traceback() -> str:
    """What is being handled, as text that JSON can carry."""
    return traceback.format_exc().rstrip().encode("utf-8", "replace").decode()
