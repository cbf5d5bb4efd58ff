"""The sessions of an interactive environment, one for each running sample.

- The same turns get the same reply in every process: a session that is missing, or that was played with other turns, is
  started again and played with all of them.
- At most `SESSIONS_MAX` sessions are kept; the least recently used are dropped first.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import orjson
from blake3 import blake3

from workers.environments.protocol import InteractiveEnvironment, Reply, Session, Turn
from workers.environments.settled import settled

SESSIONS_MAX = 4096
"""More than the number of samples that a worker generates at once."""


@dataclass(eq=False)
class PlayedSession:
    """A session, the turns that it was played with, and its answer to the last one."""

    session: Session
    turns: list[str] = field(default_factory=list)
    answer: Any = None


class Sessions:
    """`max_turns`: after so many turns of the model a session ends, like one that has no room left."""

    def __init__(self, environment: InteractiveEnvironment, max_turns: int) -> None:
        self._environment = environment
        self._max_turns = max_turns
        self._played: OrderedDict[bytes, PlayedSession] = OrderedDict()

    async def reply(self, turn: Turn) -> Reply:
        """Replies to a turn. Raises `ValueError` for a malformed answer, and any error that the environment raises."""
        key = _identity(turn)
        played = self._played.pop(key, None)
        if played is None or played.turns != list(turn.completions[: len(played.turns)]):
            played = PlayedSession(await settled(self._environment.start(turn.prompt, turn.columns, turn.seed)))
        await _catch_up(played, turn)
        if not isinstance(played.answer, str):
            return Reply(None, _reward(played.answer))
        if turn.last or len(turn.completions) >= self._max_turns:
            return Reply(None, _reward(await settled(played.session.unfinished())))
        self._played[key] = played
        while len(self._played) > SESSIONS_MAX:
            self._played.popitem(last=False)
        return Reply(played.answer, None)


async def _catch_up(played: PlayedSession, turn: Turn) -> None:
    """Plays the turns that the session has not had yet."""
    completions = turn.completions
    for number in range(len(played.turns), len(completions)):
        if number and not isinstance(played.answer, str):
            what = f"ended after turn {number} when replayed, but had not ended before turn {len(completions)}"
            raise ValueError(f"the session {what}: it depends on more than its prompt, columns, seed and turns")
        played.answer = await settled(played.session.reply(completions[number]))
        played.turns.append(completions[number])
        if played.answer == "" and isinstance(turn.prompt, str):
            raise ValueError("the environment answered with an empty text, after which the model would read nothing")


def _reward(answer: object) -> float:
    if not isinstance(answer, Real):
        raise ValueError(f"the environment answered {answer!r}, which is neither a text nor a reward")
    return float(answer)


def _identity(turn: Turn) -> bytes:
    return blake3(orjson.dumps([turn.prompt, turn.columns, turn.seed], option=orjson.OPT_SORT_KEYS)).digest()
