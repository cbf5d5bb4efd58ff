"""Who keeps a run in order: the run's rules, expired leases, dead tasks. The moves of `library/operator.lua`.

The learner's user may do what `Operator` does: its housekeeper does, and a person with its secrets. To install the
functions takes `Admin`'s.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from echo_queue.queue import library, replies
from echo_queue.queue.caller import DEADLINE_S, Caller
from echo_queue.queue.monitor import RunState
from echo_queue.queue.payloads import Payloads, PayloadStore
from echo_queue.queue.submitter import Admission
from echo_queue.queue.types import Reclaimed, RunRules

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role

SWEEP_MAX = 64


class Operator(RunState, Admission):
    """Moves what nobody else moves any more."""

    ROLE: ClassVar["Role"] = "learner"

    def __init__(self, caller: Caller, payloads: Payloads | None = None) -> None:
        super().__init__(caller)
        self._payloads = payloads or Payloads()

    @classmethod
    def connect(cls, config: "Config", store: PayloadStore | None = None, *, deadline_s: float = DEADLINE_S) -> Self:
        """Without `store`, the stored groups of buried tasks stay there until a sweep finds them."""
        return cls(Caller.connect(config, cls.ROLE, deadline_s), Payloads.of(config, store))

    def configure(self, rules: RunRules) -> None:
        """Creates the run, or changes its rules."""
        self._caller.call("configure", *replies.rules_words(rules))

    def reclaim(self, limit: int = SWEEP_MAX) -> Reclaimed:
        """One sweep over at most `limit` expired leases: → retry, or → dead after too many attempts.

        A sweep that comes much too late after the one before spares leases that living workers may renew.
        """
        return Reclaimed(*self._caller.call("reclaim", limit))

    def bury(self, task_id: str, reason: str) -> bool:
        """→ dead, by an operator. False if the task is dead already, not open, or in the learner's hands."""
        moved, *refs = self._caller.call("bury", task_id, reason)
        self._payloads.discard(filter(None, refs))
        return bool(moved)

    def revive(self, task_ids: Sequence[str]) -> int:
        """Dead → retry, with all attempts before them again."""
        return int(self._caller.call("revive", *task_ids)) if task_ids else 0


class Admin(Operator):
    """Whoever runs the services."""

    ROLE: ClassVar["Role"] = "admin"

    def install(self) -> None:
        """Loads the Lua library; needs a user that may `FUNCTION LOAD`."""
        self._caller.persist("install", lambda: library.load(self._caller.client))
