"""Which weights are published, which are announced, and whose signatures to trust. Nothing here changes anything."""

from typing import TYPE_CHECKING, Any, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Client
from echo_queue.queue.types import Announced, LatestWeights, RunKeys
from echo_queue.records import Published

ANNOUNCED_KEPT = 256
"""Parts of the version under way of which Redis has the documents, as `library/learner.lua` says."""

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


class PublishedWeights(Client):
    """The pointer to the weights, for everybody who may look at a run."""

    def published(self) -> Published | None:
        """The newest weights that may be fetched."""
        client, key = self._caller.client, self._caller.keys.published
        words = self._caller.persist("published", lambda: client.hgetall(key))
        return replies.published_of({replies.text(name): replies.text(value) for name, value in words.items()})

    def latest_weights(self) -> LatestWeights:
        """The newest weights that may be fetched, and what is announced of those after them, in one round trip."""

        def read() -> list[Any]:
            pipe = self._caller.client.pipeline(transaction=False)
            # In this order: what is not announced any more because it is published by now, is seen to be published.
            pipe.hmget(self._caller.keys.coming, "route", "last")
            pipe.hgetall(self._caller.keys.published)
            return pipe.execute()

        return replies.latest_weights_of(*self._caller.persist("latest_weights", read))

    def announced_parts(self, announced: Announced, first: int) -> dict[int, bytes]:
        """The documents of its parts by their places, from `first` on, those that are kept; none once it is gone."""
        places = range(max(first, announced.last + 1 - ANNOUNCED_KEPT), announced.last + 1)
        client, key = self._caller.client, self._caller.keys.coming
        words = self._caller.persist("announced_parts", lambda: client.hmget(key, "route", *map(str, places)))
        route, *documents = words
        found = dict(zip(places, documents, strict=True)) if route == announced.route.encode() else {}
        return {place: document for place, document in found.items() if document is not None}


class TrustedWeights(PublishedWeights):
    """The same with the keys to the weights, which only workers and learners may read."""

    ROLE: ClassVar["Role"] = "worker"

    def run_keys(self) -> RunKeys | None:
        """Whose weights to trust; None before the run's first learner has begun."""
        client, key = self._caller.client, self._caller.keys.run_keys
        words = self._caller.persist("run_keys", lambda: client.hgetall(key))
        return replies.run_keys_of({replies.text(name): replies.text(value) for name, value in words.items()})
