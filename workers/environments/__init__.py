"""Environments turn completions into rewards.

- They run in a process of their own (`scorer.py`): one that raises, hangs or dies costs its task an attempt,
  with the traceback, and never becomes a reward of 0.
- A reward is a finite float, one for each completion; anything else is a failure too.
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


class Environment(Protocol):
    def score(self, answers: Answers) -> list[float]:
        """The reward of each completion, in order. May raise anything."""


def create(config: EnvironmentConfig) -> Environment:
    """Raises `ConfigError` if the environment cannot be had on this machine."""
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
