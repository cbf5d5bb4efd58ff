"""Brings the learner's weights to the workers: stores a version, moves the pointer to it, removes what no worker needs.

- The learner's thread hands over a version and goes on training; the publish thread stores it (`PublishThread`). Of
  several ranks, each makes the parts of its own share (`RankedMakers`), and rank 0 does the rest.
- The pointer moves only when the version is stored whole. If Redis forgets the pointer, the housekeeper sets it again:
  no other role would.
- Pruning spares every version that a living worker reports to serve, and what else is needed.
"""

from collections.abc import Callable, Collection, Mapping

from echo_queue import weights
from echo_queue.config import Config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import LearnerQueue, Status
from echo_queue.records import Published, Version
from echo_queue.weights.layout import Share
from echo_queue.weights.part_makers import PartMaker, PartMakers
from echo_queue.weights.signatures import Signer
from learner.publication import signing_key
from learner.publication.announcer import Announcer
from learner.publication.coding_threads import coding_threads
from learner.publication.publish_thread import PublishThread, Snapshot
from learner.publication.ranked_makers import RankedMakers
from learner.ranks.team import Team


class WeightBroadcast:
    """The broadcast of one lineage. `ask_ahead` is called with each version right before the pointer moves to it,
    `published` right after, and `needed` gives versions that must stay in the store.

    The housekeeper's thread calls `observe`, the learner's every other method.
    """

    def __init__(
        self,
        config: Config,
        store: ObjectStore,
        queue: LearnerQueue,
        *,
        weight_publisher: weights.WeightPublisher,
        makers: PartMakers,
        announcer: Announcer,
        ask_ahead: Callable[[Version], None],
        published: Callable[[Version], None],
        needed: Callable[[], Collection[Version]],
    ) -> None:
        self._store, self._queue, self._ask_ahead = store, queue, ask_ahead
        self._published, self._needed = published, needed
        self._s = config.staleness.s
        self._weight_publisher, self._makers = weight_publisher, makers
        self._announcer = announcer
        self._thread = PublishThread(self._publish, self._publish_further, config.queue.stall_deadline_s)
        self._pointer: Published | None = None
        """The newest version that is published."""
        self._served: frozenset[Version] = frozenset()

    @property
    def t_bcast_s(self) -> float:
        """T_bcast, smoothed: seconds from the end of an update until all living workers serve its weights."""
        return self._thread.t_bcast_s

    @property
    def stored(self) -> Mapping[str, int]:
        """Weight bytes stored since this learner started, by kind ("anchor", "delta")."""
        return self._weight_publisher.stored

    def has_published(self) -> bool:
        """Returns whether a version of this lineage is published."""
        return self._pointer is not None

    def start(self) -> None:
        self._thread.start()
        self._announcer.start()

    @property
    def free(self) -> bool:
        """True if a version may be handed over: none is being published."""
        return self._thread.free

    def hand_over(self, snapshot: Snapshot) -> None:
        """Publishes a version in the background, once this is `free`. Raises the error of an earlier one, if any."""
        self._thread.hand_over(snapshot)

    def wait(self) -> None:
        """Waits until every version handed over is published. Raises `DeadlineError`, or the publication's error."""
        self._thread.wait()

    def check(self) -> None:
        """Raises the error that stopped the publish thread, if any."""
        self._thread.check()

    def close(self) -> None:
        """Finishes the version that is being published if that takes no longer than usual; drops one that waits."""
        self._thread.close()
        if not self._thread.is_alive():
            self._makers.close()
        self._announcer.close()

    def observe(self, status: Status) -> None:
        """Housekeeper thread: measures T_bcast, notes the versions served, and restores a pointer that Redis forgot."""
        self._thread.observe(status)
        self._served = frozenset(worker.heartbeat.version for worker in status.workers if worker.heartbeat is not None)
        last, now = self._pointer, status.published
        if last is not None and (now is None or now.version < last.version):
            self._queue.publish(last)

    def _publish(self, version: Version, share: Share) -> None:
        """Publish thread: stores `version` whole, then moves the pointer to it."""
        published = self._weight_publisher.publish_share(version, share)
        self._ask_ahead(version)
        self._queue.publish(published)
        self._pointer = published
        self._published(version)

    def _publish_further(self, version: Version, hurried: Callable[[], bool]) -> None:
        """Publish thread: stores deltas for workers that missed versions; prunes versions that no worker can need."""
        self._weight_publisher.further(version, hurried)
        weights.prune(self._store, version, self._s, {*self._served, *self._needed()})


def open_broadcast(
    config: Config,
    store: ObjectStore,
    team: Team,
    queue: LearnerQueue,
    *,
    announcements: LearnerQueue,
    signer: Signer,
    ask_ahead: Callable[[Version], None],
    published: Callable[[Version], None],
    needed: Callable[[], Collection[Version]],
) -> WeightBroadcast:
    """Returns the broadcast of the configured run. `announcements`: the same queue, with a short deadline.

    `ask_ahead`, `published`, `needed`: as in `WeightBroadcast`.
    """
    announcer = Announcer(announcements)
    chunk_key = signing_key.run_keys(signer).chunk_key if config.weights.encrypt else None
    threads = coding_threads(config)
    own = PartMaker(store, config.weights, chunk_key=chunk_key, threads=threads)
    # A rank whose store does not answer reports that once its request has reached the store's own deadline.
    deadline_s = store.deadline_s + team.deadline_s
    makers = RankedMakers(team, own, deadline_s, chunk_key) if team.size > 1 else own
    weight_publisher = weights.WeightPublisher(
        store,
        config.run.name,
        signer,
        config.weights,
        makers=makers,
        announce=announcer.announce,
    )
    return WeightBroadcast(
        config,
        store,
        queue,
        weight_publisher=weight_publisher,
        makers=makers,
        announcer=announcer,
        ask_ahead=ask_ahead,
        published=published,
        needed=needed,
    )
