"""The protocol of environments, which turn completions into rewards, at once or after several turns.

- An environment runs in a process of its own (`scorer.py`): one that raises, hangs or dies costs its task an attempt,
  recorded with the traceback, and never becomes a reward of 0.
- A reward is a finite float, one for each completion; anything else is a failure too.
- An interactive environment keeps a session for each sample. A session follows from its prompt, columns, seed and the
  model's turns, so it can be made again anywhere (`sessions.py`): a sample may continue on another machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # numpy would take most of the start of each child process
    from echo_queue.records import Message


@dataclass(frozen=True)
class EnvironmentSettings:
    """The keys of the section `environment` that its child process needs; the parent has validated them.

    `rewards`: the reward functions of the kind `function` by name, as the tables of the configuration have them.
    """

    kind: str
    function: str
    options: dict[str, Any]
    max_turns: int
    rewards: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScoringRequest:
    """The N completions of one prompt, to be scored. `columns` are the prompt row's further columns.

    `finish_reasons`: why each completion ended; `versions`: the number of the newest weights that drew tokens of it.
    """

    prompt: "str | list[Message]"
    completions: Sequence[str]
    completion_ids: Sequence[list[int]]
    columns: Mapping[str, Any]
    finish_reasons: Sequence[str]
    versions: Sequence[int]


@dataclass(frozen=True)
class Rewards:
    """The rewards of all completions, in order, and by the names of reward functions what each of them gave."""

    values: list[float]
    parts: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Within:
    """Says which of several reward functions a call is in; empty: none any more."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Spent:
    """What judges have cost: questions that were sent, and tokens as their servers counted them."""

    calls: int = 0
    tokens: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.calls + other.calls, self.tokens + other.tokens)


Tell = Callable[[Within | Spent], None]
"""Tells the worker, before the answer to a call, what it should know even if no answer comes."""


@dataclass(frozen=True)
class Turn:
    """A sample up to the point where the environment must reply.

    `completions`: every text that the model wrote in the sample, in order. `last`: the model has no room to write more;
    its last text may be cut, or may have been answered before by an observation that filled the room.
    """

    prompt: "str | list[Message]"
    columns: Mapping[str, Any]
    seed: int
    completions: Sequence[str]
    last: bool = False


@dataclass(frozen=True)
class Reply:
    """An environment's reply: an observation that the model reads next, or, once the sample is over, its reward."""

    observation: str | None
    reward: float | None


class ScoringEnvironment(Protocol):
    """Scores completions at once."""

    async def score(self, request: ScoringRequest, tell: Tell) -> Rewards:
        """Returns the reward of each completion, in order. May raise anything.

        It is begun by hand, and waits only in an event loop (`settled.in_event_loop`).
        """


class Session(Protocol):
    """A sample's game, dialogue or tools."""

    def reply(self, text: str) -> str | float:
        """Replies to the model's next turn: a text, empty only in a chat, or the reward, which ends the session."""

    def unfinished(self) -> float:
        """Returns the reward of a sample that ends because the model has no room, or no turns, left."""


class InteractiveEnvironment(Protocol):
    """Answers the model turn by turn."""

    def start(self, prompt: "str | list[Message]", columns: Mapping[str, Any], seed: int) -> Session:
        """Starts a session whose replies depend only on these arguments and the model's turns. May raise anything."""
