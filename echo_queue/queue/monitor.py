"""What may be read of a run by everybody who may look at it, and changes nothing: half of `library/operator.lua`."""

from typing import TYPE_CHECKING, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Caller, Client
from echo_queue.queue.events import Events
from echo_queue.queue.payloads import Payloads
from echo_queue.queue.published import PublishedWeights
from echo_queue.queue.submitter import Submissions
from echo_queue.queue.types import Audit, DeadTask, Status
from echo_queue.records import Group, PartialGroup

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


class RunState(Client):
    """How a run stands."""

    def status(self) -> Status:
        """Everything a person wants to see, from one read-only snapshot."""
        return replies.status_of(self._caller.ask("status"))

    def audit(self) -> Audit:
        """The conservation identity, from one read-only snapshot."""
        return replies.audit_of(self._caller.ask("audit"))

    def dead(self, limit: int = 100) -> list[DeadTask]:
        """The tasks given up last."""
        client, key = self._caller.client, self._caller.keys.dead
        rows = self._caller.persist("dead", lambda: client.xrevrange(key, count=limit))
        return [replies.dead_of(words) for _, words in rows]


class Monitor(RunState, PublishedWeights, Submissions, Events):
    """For people who look, and for roles that say who holds the run up."""

    ROLE: ClassVar["Role"] = "monitor"

    def __init__(self, caller: Caller, payloads: Payloads | None = None) -> None:
        super().__init__(caller)
        self._payloads = payloads or Payloads()

    def group_in_replay(self, task: str | None = None) -> Group | None:
        """The group of a task that is made and not yet trained; of any task: the newest one. For people to look at.

        Raises `CodecError` for bytes that are none.
        """
        most = None if task else 1
        client, key = self._caller.client, self._caller.keys.replay
        rows = self._caller.persist("group_in_replay", lambda: client.xrevrange(key, count=most))
        wanted = task.encode() if task else None
        return next((self._payloads.group(words) for _, words in rows if wanted in (None, words.get(b"id"))), None)

    def partial_group(self, task: str) -> PartialGroup | None:
        """How far a task was when its worker last told. For people to look at. Raises `CodecError`."""
        client, key = self._caller.client, self._caller.keys.partials
        words = self._caller.persist("partial_group", lambda: client.hget(key, task))
        return None if words is None else self._payloads.partials(task, replies.kept_words(words))
