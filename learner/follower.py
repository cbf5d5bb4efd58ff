"""The part of every rank but rank 0: it trains and saves as rank 0 orders, and knows neither Redis nor the workers."""

from collections.abc import Iterator, Mapping
from threading import Event

from torch import Tensor

from learner.publication.part_thread import PartThread
from learner.publication.publish_thread import Snapshot
from learner.ranks.order import NOW, Order, receive
from learner.ranks.team import Team
from learner.recovery.manifest import CheckpointManifest, History
from learner.update import UpdateResult


class Follower:
    """`Leader` on the other ranks: it hears what rank 0 decides, and leaves to rank 0 what rank 0 alone does."""

    def __init__(self, team: Team, parts: PartThread) -> None:
        self._team, self._parts = team, parts
        self.finished = False
        """Rank 0 alone knows it."""
        self._over = False
        """True once rank 0 has said that no more orders follow."""

    def start(self) -> None:
        """Starts the thread that makes this rank's parts of the versions."""
        self._parts.start()

    def close(self) -> None:
        """Lets that thread end what rank 0 still publishes, if the learner ends as it should."""
        if self._over:
            self._parts.close()

    def orders(self, stop: Event) -> Iterator[Order]:
        """Yields rank 0's orders until the last one. Raises `RankLostError`."""
        while order := receive(self._team):
            yield order
        self._over = True

    def publishes(self, order: Order) -> bool:
        """Hears whether the version is published now."""
        return self._team.receive() == NOW

    def report(self, order: Order, result: UpdateResult | None, trained_s: float, snapshot: Snapshot | None) -> None:
        """Hands this rank's share over for publication: rank 0 tells the rest."""
        if snapshot:
            self._parts.hand_over(snapshot)

    def history(self) -> History:
        """Rank 0 writes the manifest."""
        return History()

    def commit(self, saved: CheckpointManifest | None) -> None:
        """Rank 0 commits; here is raised what ended this rank's thread."""
        self._parts.check()

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Rank 0 writes the model."""
