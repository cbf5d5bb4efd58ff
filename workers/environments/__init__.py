"""Environments turn completions into rewards, at once or after several turns.

- They run in a process of their own (`scorer.py`): one that raises, hangs or dies costs its task an attempt,
  with the traceback, and never becomes a reward of 0.
- A reward is a finite float, one for each completion; anything else is a failure too.
- An interactive one keeps a session for each sample. A session follows from its prompt, columns, seed and the model's
  turns, so it can be made again anywhere (`sessions.py`): a sample may go on on another machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from echo_queue.config import Environment as EnvironmentConfig
from echo_queue.records import Message


@dataclass(frozen=True)
class Answers:
    """The N completions of one prompt. `columns` are the prompt row's further columns."""

    prompt: str | list[Message]
    completions: Sequence[str]
    completion_ids: Sequence[list[int]]
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One sample up to where the environment is to speak.

    `completions`: every text that the model wrote in it, in order. `last`: there is no room for more; the last text may
    be cut, or may have been answered before with an observation that filled the room.
    """

    prompt: str | list[Message]
    columns: Mapping[str, Any]
    seed: int
    completions: Sequence[str]
    last: bool = False


@dataclass(frozen=True)
class Reply:
    """What the model reads next; or None, and the reward, once it is over."""

    observation: str | None
    reward: float | None


class Environment(Protocol):
    def score(self, answers: Answers) -> list[float]:
        """The reward of each completion, in order. May raise anything."""


class Session(Protocol):
    """One sample's game, dialogue or tools."""

    def reply(self, text: str) -> str | float:
        """To the model's next turn: a text, not empty, that it reads, or the reward, which ends the session."""

    def unfinished(self) -> float:
        """The reward if the model has no room, or no turns, to go on."""


class Interactive(Protocol):
    def start(self, prompt: str | list[Message], columns: Mapping[str, Any], seed: int) -> Session:
        """A session whose replies depend on these and on the model's turns, and on nothing else. May raise anything."""


def create(config: EnvironmentConfig) -> Environment | Interactive:
    """One with sessions iff `config.kind` is interactive.

    Raises `ConfigError` if the environment cannot be had on this machine.
    """
    match config.kind:
        case "reasoning-gym":
            from workers.environments.reasoning_gym import ReasoningGym

            return ReasoningGym()
        case "math":
            from workers.environments.math import Math

            return Math()
        case "function":
            from workers.environments.function import Function

            return Function(config.function)
        case "interactive":
            from workers.environments.interactive import make

            return make(config.function, config.options)
        case "verifiers":
            from workers.environments.verifiers import Verifiers

            return Verifiers(config.function, config.options)
        case "poker":
            from workers.environments.poker import Poker

            return Poker()
