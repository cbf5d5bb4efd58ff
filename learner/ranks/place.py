"""The place of a process among the ranks of a learner, as `learner.ranks.launcher`, torchrun and their like give it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from echo_queue.errors import ConfigError, Problem

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LISTENER = "ECHO_QUEUE_RANKS_LISTENER"
"""Variable that gives rank 0 the descriptor of the socket at which it listens for the other ranks."""
LAUNCHED = "ECHO_QUEUE_RANKS_LAUNCHED"
"""Variable that says that `learner.ranks.launcher` started this rank."""


@dataclass(frozen=True)
class Place:
    """The place of this process among `size` ranks; `local`: its number on its own machine."""

    rank: int
    size: int
    local: int
    launched: bool = False
    """True if `learner.ranks.launcher` started it"""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self | None:
        """Reads the place from torchrun's variables; None if there are none, or for one process.

        Raises `ConfigError` if only some are set.
        """
        given = [name for name in VARIABLES[:2] if name in environ]
        if not given or environ.get("WORLD_SIZE") == "1":
            return None
        missing = [name for name in VARIABLES if name not in environ]
        if missing:
            what = f"not set, although {given[0]} is"
            raise ConfigError(Problem(", ".join(missing), what, "set all of torchrun's variables, or none of them"))
        try:
            rank, size, local = (int(environ[name]) for name in VARIABLES[:3])
        except ValueError as error:
            raise ConfigError(Problem(", ".join(VARIABLES[:3]), f"not all numbers: {error}", "set numbers")) from None
        return cls(rank, size, local, LAUNCHED in environ)


ALONE = Place(0, 1, 0)
"""The place of a learner of one process"""
