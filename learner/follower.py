"""The part of every rank but rank 0: it trains and saves as rank 0 orders, and knows neither Redis nor the workers."""

from collections.abc import Iterator, Mapping
from threading import Event

from torch import Tensor

from echo_queue.records import Version
from learner.ranks.order import Order, receive
from learner.ranks.team import Team
from learner.recovery.manifest import CheckpointManifest, History
from learner.update import UpdateResult


class Follower:
    """`Leader` on the other ranks: it hears what rank 0 decides, and leaves to rank 0 what rank 0 alone does."""

    def __init__(self, team: Team) -> None:
        self._team = team

    def start(self) -> None:
        """No thread works beside the main one."""

    def close(self) -> None:
        """There is nothing to end."""

    def orders(self, stop: Event) -> Iterator[Order]:
        """Yields rank 0's orders until the last one. Raises `RankLostError`."""
        while order := receive(self._team):
            yield order

    def advance(self, order: Order, trained_s: float) -> None:
        """Rank 0 advances the queue."""

    def hand_over(self, version: Version, weights: Mapping[str, Tensor]) -> None:
        """Rank 0 publishes."""

    def record(self, order: Order, result: UpdateResult) -> None:
        """Rank 0 keeps the records."""

    def history(self) -> History:
        """Rank 0 writes the manifest."""
        return History()

    def commit(self, saved: CheckpointManifest | None) -> None:
        """Rank 0 commits."""

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Rank 0 writes the model."""
