"""The sessions of an interactive environment, one for each sample under way.

- The same turns get the same reply, in whatever process they are told: a session that is missing, or that has heard
  other turns, is made again and hears all of them.
- At most `SESSIONS_MAX` are kept; those unused for longest make room.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import orjson
from blake3 import blake3

from workers.environments import Interactive, Reply, Session, Turn

SESSIONS_MAX = 4096
"""More samples than a worker has under way at once."""


@dataclass(eq=False)
class Heard:
    """A session, the turns it has heard, and its answer to the last one."""

    session: Session
    turns: list[str] = field(default_factory=list)
    answer: Any = None


class Sessions:
    """`max_turns`: a session ends after so many turns of the model, as one that has no room left."""

    def __init__(self, environment: Interactive, max_turns: int) -> None:
        self._environment = environment
        self._max_turns = max_turns
        self._heard: OrderedDict[bytes, Heard] = OrderedDict()

    def reply(self, turn: Turn) -> Reply:
        """Raises `ValueError` for an answer that is none; and whatever the environment raises."""
        key = _identity(turn)
        heard = self._heard.pop(key, None)
        if heard is None or heard.turns != list(turn.completions[: len(heard.turns)]):
            heard = Heard(self._environment.start(turn.prompt, turn.columns, turn.seed))
        _tell(heard, turn.completions)
        if not isinstance(heard.answer, str):
            return Reply(None, _reward(heard.answer))
        if turn.last or len(turn.completions) >= self._max_turns:
            return Reply(None, _reward(heard.session.unfinished()))
        self._heard[key] = heard
        while len(self._heard) > SESSIONS_MAX:
            self._heard.popitem(last=False)
        return Reply(heard.answer, None)


def _tell(heard: Heard, completions: Sequence[str]) -> None:
    """Those turns that the session has not heard."""
    for number in range(len(heard.turns), len(completions)):
        if number and not isinstance(heard.answer, str):
            what = (
                f"ended after turn {number} and not before turn {len(completions)} when they were told to it once more"
            )
            raise ValueError(f"the session {what}: it depends on more than its prompt, columns, seed and turns")
        heard.answer = heard.session.reply(completions[number])
        heard.turns.append(completions[number])
        if heard.answer == "":
            raise ValueError("the environment answered with an empty text")


def _reward(answer: object) -> float:
    if not isinstance(answer, Real):
        raise ValueError(f"the environment answered {answer!r}, neither a text nor a reward")
    return float(answer)


def _identity(turn: Turn) -> bytes:
    return blake3(orjson.dumps([turn.prompt, turn.columns, turn.seed], option=orjson.OPT_SORT_KEYS)).digest()
