"""Read-only views of the weights: the published version, announced parts of the next one, and the keys to trust."""

from typing import TYPE_CHECKING, Any, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Client
from echo_queue.queue.types import Announced, LatestWeights, RunKeys
from echo_queue.records import Published

ANNOUNCED_KEPT = 256
"""Redis keeps the documents of this many newest parts of the version under way, as `library/learner.lua` states."""

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


class PublishedWeights(Client):
    """The pointer to the newest weights, for every role that may read a run."""

    def published(self) -> Published | None:
        """Returns the newest weights that may be fetched; None if there are none."""
        client, key = self._caller.client, self._caller.keys.published
        words = self._caller.persist("published", lambda: client.hgetall(key))
        return replies.published_of({replies.text(name): replies.text(value) for name, value in words.items()})

    def latest_weights(self) -> LatestWeights:
        """Returns the newest weights and what is announced of the version after them, in one round trip."""

        def read() -> list[Any]:
            pipe = self._caller.client.pipeline(transaction=False)
            # The order matters: a version that is no longer announced because it was published is then seen published.
            pipe.hmget(self._caller.keys.coming, "route", "last")
            pipe.hgetall(self._caller.keys.published)
            return pipe.execute()

        return replies.latest_weights_of(*self._caller.persist("latest_weights", read))

    def announced_parts(self, announced: Announced, first: int) -> dict[int, bytes]:
        """Returns the signed documents of a route's parts by their places, from `first` on, as far as Redis keeps them.

        The result is empty once the route is no longer announced.
        """
        places = range(max(first, announced.last + 1 - ANNOUNCED_KEPT), announced.last + 1)
        client, key = self._caller.client, self._caller.keys.coming
        words = self._caller.persist("announced_parts", lambda: client.hmget(key, "route", *map(str, places)))
        route, *documents = words
        found = dict(zip(places, documents, strict=True)) if route == announced.route.encode() else {}
        return {place: document for place, document in found.items() if document is not None}


class TrustedWeights(PublishedWeights):
    """The published weights and the keys to them, which only the Redis users `worker` and `learner` may read."""

    ROLE: ClassVar["Role"] = "worker"

    def run_keys(self) -> RunKeys | None:
        """Returns the keys that say which weights to trust; None before the run's first learner has begun."""
        client, key = self._caller.client, self._caller.keys.run_keys
        words = self._caller.persist("run_keys", lambda: client.hgetall(key))
        return replies.run_keys_of({replies.text(name): replies.text(value) for name, value in words.items()})
