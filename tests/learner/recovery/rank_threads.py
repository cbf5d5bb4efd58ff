"""Ranks as threads of one process: what they do together without collectives needs no more."""

import threading
from collections.abc import Callable
from typing import TypeVar

from torch._C._distributed_c10d import HashStore

from learner.ranks.team import Team

DEADLINE_S = 60.0
T = TypeVar("T")


def teams(size: int, deadline_s: float = DEADLINE_S) -> list[Team]:
    """Returns the teams of `size` ranks that share a store."""
    store = HashStore()
    return [Team(rank, size, store, deadline_s=deadline_s, silence_s=deadline_s) for rank in range(size)]


def run_all(ranks: list[Team], action: Callable[[Team], T]) -> list[T | BaseException]:
    """Calls `action` for each rank, side by side. Returns what each returned, or the exception that ended it."""
    outcomes: dict[int, T | BaseException] = {}

    def run(team: Team) -> None:
        try:
            outcomes[team.rank] = action(team)
        except BaseException as error:
            outcomes[team.rank] = error

    threads = [threading.Thread(target=run, args=(team,), daemon=True) for team in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_S)
    if len(outcomes) < len(ranks):
        raise TimeoutError(f"ranks {sorted({team.rank for team in ranks} - set(outcomes))} hang")
    return [outcomes[team.rank] for team in ranks]
