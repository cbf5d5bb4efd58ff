"""What the clients of a learner share: the lineage that fences their moves, and what becomes of a bad group."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from echo_queue.queue.caller import Caller, Client
from echo_queue.queue.payloads import Payloads
from echo_queue.records import Group
from echo_queue.records.group_codec import CodecError
from echo_queue.records.validation import UnfitGroup

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


class LineageClient(Client):
    """Reads workers' groups for the learner of one lineage.

    `lineage`: a lineage that another client began. The default 0 is fenced by every learner that has begun.
    """

    ROLE: ClassVar["Role"] = "learner"

    def __init__(self, caller: Caller, payloads: Payloads | None = None, lineage: int = 0) -> None:
        super().__init__(caller)
        self._payloads = payloads or Payloads()
        self._lineage = lineage

    @property
    def lineage(self) -> int:
        """Returns the client's lineage, the learner's fencing token."""
        return self._lineage

    def return_unfit(self, task_id: bytes, entry: bytes) -> bool:
        """Sends back the group at `entry` of replay, which limits that have changed since exclude.

        Returns False if it is not there.
        """
        moved, *refs = self._caller.call("return_unfit", self._lineage, task_id, entry)
        self._payloads.discard(filter(None, refs))
        return bool(moved)

    def _group_or_rejected(self, task: bytes, entry: bytes, words: Mapping[bytes, bytes]) -> tuple[Group | None, bool]:
        """Returns the group of an entry, or None and whether it was rejected as bad."""
        try:
            return self._payloads.group(words), False
        except UnfitGroup:
            self.return_unfit(task, entry)
            return None, False
        except CodecError as error:
            sender = self._reject_group(task, entry, error)
            if sender:
                self._payloads.blame(sender, task.decode("utf-8", "replace"), error)
            return None, sender is not None

    def _reject_group(self, task_id: bytes, entry: bytes, error: CodecError) -> str | None:
        """Sends back the bad group at `entry` of replay, counted as `bad_<cause>`, or `missing` without its object.

        That costs its task an attempt, and the last one moves it to dead; a group of a suspended worker costs none.
        Returns the worker to blame, "" if nobody is; None if the group is not there.
        """
        words = task_id, entry, error.problems[0].what, error.cause
        moved, *told = self._caller.call("reject_group", self._lineage, *words)
        if not moved:
            return None
        sender, *refs = told
        self._payloads.discard(filter(None, refs))
        return str(sender, "utf-8", "replace")
