"""The clients that keep a run in order: its rules, expired leases, dead tasks. The moves are those of
`library/operator.lua` and `library/lease_expiry.lua`, and one of `library/partials.lua`.

Redis user `learner` has the rights for `Operator`: the learner's housekeeper uses it, and so may a person with the
learner's secrets. Installing the functions takes Redis user `admin`, hence `Admin`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from echo_queue.queue import library, replies
from echo_queue.queue.caller import DEADLINE_S, Caller
from echo_queue.queue.monitor import RunState
from echo_queue.queue.payloads import Payloads, PayloadStore
from echo_queue.queue.run_rules import RunRules, differences, rules_of, words_of
from echo_queue.queue.submitter import Admission
from echo_queue.queue.types import Reclaimed

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role
    from echo_queue.errors import Problem

SWEEP_MAX = 32


class Operator(RunState, Admission):
    """Moves tasks that no other role moves any more, as Redis user `learner`.

    The moves are those of `library/operator.lua` and, for leases that ran out, of `library/lease_expiry.lua`.
    """

    ROLE: ClassVar["Role"] = "learner"

    def __init__(self, caller: Caller, payloads: Payloads | None = None) -> None:
        super().__init__(caller)
        self._payloads = payloads or Payloads()

    @classmethod
    def connect(cls, config: "Config", store: PayloadStore | None = None, *, deadline_s: float = DEADLINE_S) -> Self:
        """Returns a client with a tested connection to the configured run.

        Without `store`, the stored groups of buried tasks stay in the object store until a sweep finds them.
        """
        return cls(Caller.connect(config, cls.ROLE, deadline_s), Payloads.of(config, store))

    def configure(self, rules: RunRules) -> "tuple[Problem, ...]":
        """Creates the run with these rules. A run that exists keeps its own, which only its next learner may change.

        Returns a problem for each rule that is another one in the run.
        """
        kept = self._caller.call("configure", *words_of(rules))
        return differences(rules, rules_of(replies.fields(kept)))

    def reclaim(self, limit: int = SWEEP_MAX) -> Reclaimed:
        """Ends at most `limit` expired leases: their tasks go to retry, or to dead after too many attempts.

        Tasks in flight that are too late go to retry, too. A limit bounds how long Redis serves nobody else. Where as
        many as that were moved, more may be left: call it again at once. Time passes for leases from sweep to sweep,
        at most a quarter of a lease each time, so that an outage or a clock that was set ends no living worker's lease.
        """
        return Reclaimed(*self._caller.call("reclaim", limit))

    def reclaim_all(self) -> None:
        """Ends all expired leases, in steps between which Redis serves others."""
        while self.reclaim().leases >= SWEEP_MAX:
            pass

    def bury(self, task_id: str, reason: str) -> bool:
        """Moves a task to dead, for an operator.

        Returns False if it is dead already, not open, or in the learner's hands.
        """
        moved, *refs = self._caller.call("bury", task_id, reason)
        self._payloads.discard(filter(None, refs))
        return bool(moved)

    def revive(self, task_ids: Sequence[str]) -> int:
        """Moves tasks to retry, with all their attempts available again. Returns how many it moved.

        It moves those that are dead, and those in tasks or retry of which an attempt has failed (`failing`).
        """
        return int(self._caller.call("revive", *task_ids)) if task_ids else 0

    def evict(self, beginning: str) -> int:
        """Hands back all that the workers hold whose names begin so; the next sweep moves it, which costs no attempt.

        They are no longer listed, and are offered nothing. Returns the number of tasks that they held. Their Redis user
        must have been removed before: this keeps no worker from leasing again.
        """
        return int(self._caller.call("evict", beginning))

    def reinstate(self, workers: Sequence[str]) -> int:
        """Lets workers that the learner has suspended lease again. Returns how many of these were suspended."""
        return int(self._caller.call("reinstate", *workers)) if workers else 0

    def unwanted(self, removed: Sequence[str] = ()) -> list[str]:
        """Returns objects of partial rollouts that nothing points to any more, at most 1,000; all of them in turn.

        `removed`: those that have been removed from the object store since the last call.
        """
        return [key.decode("utf-8", "replace") for key in self._caller.call("unwanted", *removed)]


class Admin(Operator):
    """The operator's moves and the installation of the functions, as Redis user `admin`, for `echo-queue services`."""

    ROLE: ClassVar["Role"] = "admin"

    def install(self) -> None:
        """Loads the Lua library. This needs a Redis user that may `FUNCTION LOAD`."""
        self._caller.persist("install", lambda: library.load(self._caller.client))
