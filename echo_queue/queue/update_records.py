"""Reads what updates have reported, from the newest one back, without the run's whole history."""

from typing import TYPE_CHECKING, Any, ClassVar

import redis

from echo_queue.queue import replies
from echo_queue.queue.caller import Client
from echo_queue.queue.types import UpdateRecord

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role

NO_SUCH_KEY = "no such key"


class UpdateRecords(Client):
    """Reads the records of updates as Redis user `monitor`."""

    ROLE: ClassVar["Role"] = "monitor"

    def newest(self, count: int) -> list[UpdateRecord]:
        """Returns the newest `count` records by lineage and version, the oldest of them first; those of versions that a
        later lineage abandoned are among them.
        """
        client, key = self._caller.client, self._caller.keys.updates
        rows = self._caller.persist("newest_updates", lambda: client.xrevrange(key, count=count))
        return [replies.record_of(entry, words) for entry, words in reversed(rows)]

    def recorded(self) -> int:
        """Returns how many updates were ever recorded in this Redis, also those whose records are gone by now."""
        return int(self._caller.persist("recorded_updates", self._entries_added))

    def _entries_added(self) -> Any:
        client: Any = self._caller.client
        try:
            return client.xinfo_stream(self._caller.keys.updates)["entries-added"]
        except redis.ResponseError as error:
            if NO_SUCH_KEY not in str(error):
                raise
            return 0
