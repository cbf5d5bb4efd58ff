"""Whom one route is fetched from, and when to turn to another: the queue's chain first, the store last.

- A peer that dies, is silent, busy or lies is left for the next one, for this route; one that served a bad chunk is
  never asked again, and is reported; so is one that cannot be reached, which is not asked for a while.
- A peer that is slow is left only for one that is really further, or has proved twice as fast: it is *tasted*, a few
  chunks. The store is tasted once, where no other peer is: so a slow store is not made slower by everybody.
- Who reads the store asks now and then whether a peer has come that could feed it instead.
- A busy peer is asked again when it says, within one deadline of a chunk; then the next one is.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from echo_queue.errors import DeadlineError, Problem, ServiceError
from echo_queue.queue import Joined, Upstream
from echo_queue.queue.types import Complaint
from echo_queue.weights.reader import Damaged
from workers.weights.peers.part_cache import PartFile
from workers.weights.peers.sources import Busy, Left, Peer, Source, Store

log = logging.getLogger(__name__)

LOOK_S = 1.0
LAG_CHUNKS = 16
"""So far behind another peer is behind; less is the length of the chain."""
LAG_S = 2.0
TASTE_CHUNKS = 8
STRANGE_S = 5.0
"""Where nobody knows what is usual, the store is not tasted before."""
STORE_TRIES = 3
"""Of a chunk that the store has wrong: the way here may have spoiled it."""
STORE_PAUSE_S = 0.2
BUSY_TRIES = 3
BUSY_PAUSE_S = 0.5
"""For a peer that does not say itself when to come again."""
SHUN_S = 60.0
"""A peer that could not be reached is not asked again for so long."""
FADE = 0.75
"""What an old rate is worth at each new one."""
WINDOW_S = 1.0
WINDOW_BYTES = 4 << 20
"""Less than this says nothing about a rate."""


@dataclass
class Memory:
    """What a worker remembers of its peers beyond one route."""

    liars: set[str] = field(default_factory=set)
    shunned: dict[str, float] = field(default_factory=dict)
    """Peer → until when."""
    peers: dict[Upstream, Peer] = field(default_factory=dict)
    """With their open connections."""
    rate: float = 0.0
    """Bytes/s that this worker has fetched at."""

    def learn(self, rate: float) -> None:
        """A better rate counts at once, a lower one bit by bit: it may have been the source that was slow."""
        if rate:
            self.rate = max(rate, FADE * self.rate)

    def keep(self, peers: Collection[Peer]) -> None:
        """Forgets all others, and ends their connections: most of them will never be asked again."""
        for known, peer in tuple(self.peers.items()):
            if peer not in peers:
                self.peers.pop(known, None)
                peer.close()

    def avoided(self) -> set[str]:
        now = time.monotonic()
        return self.liars | {name for name, until in self.shunned.items() if until > now}


class Rate:
    """The best rate over a whole window, in bytes/s; of something shorter than one, its own."""

    def __init__(self, now_s: float) -> None:
        self._best = 0.0
        self._since = self._last_s = now_s
        self._bytes = 0

    def count(self, length: int, now_s: float) -> None:
        self._bytes += length
        self._last_s = now_s
        if now_s - self._since >= WINDOW_S:
            self._best = max(self._best, self._over(now_s))
            self._since, self._bytes = now_s, 0

    def rest(self, now_s: float) -> None:
        """Nothing was to be had since the last bytes: that time does not count."""
        self._best = max(self._best, self._over(self._last_s))
        self._since, self._bytes = now_s, 0

    def best(self, now_s: float) -> float:
        """0 if too little came to say."""
        return self._best or self._over(now_s)

    def _over(self, now_s: float) -> float:
        return self._bytes / (now_s - self._since) if self._bytes >= WINDOW_BYTES and now_s > self._since else 0.0


class SourceSelector:
    """The sources of one route, first the one that is fetched from now. For the threads of one courier.

    `joined`: what the queue answered; None: the store alone. `closed`: once set, this worker fetches nothing more.
    """

    def __init__(
        self,
        route: str,
        store: Store,
        memory: Memory,
        joined: Joined | None,
        *,
        join: Callable[[set[str]], Joined],
        make: Callable[[Upstream], Peer],
        complain: Callable[[str, Complaint], None],
        deadline_s: float,
        chunk_deadline_s: float,
        closed: threading.Event,
    ) -> None:
        self.route = route
        self._closed = closed
        self._store = store
        self._memory = memory
        self._join = join if joined is not None else None
        self._make = make
        self._complain = complain
        self._deadline_s = deadline_s
        self._give_up = time.monotonic() + deadline_s
        self._chunk_deadline_s = chunk_deadline_s
        self._lock = threading.RLock()
        self._left: set[str] = set()
        self._peers: list[Peer] = []
        self._usual = 0.0
        self._rate = Rate(time.monotonic())
        self._began = self._looked = time.monotonic()
        self._looked_bytes = 0
        self._looking = False
        self._fed = time.monotonic()
        self._store_trouble = 0
        self._busy = 0
        self._busy_s = 0.0
        self._taste: Probe | None = None
        self._tasted: set[str] = set()
        self._last: Exception | None = None
        if joined is not None:
            self._take(joined)

    @property
    def first(self) -> Source:
        with self._lock:
            if self._taste is not None:
                return self._taste.source
            return self._peers[0] if self._peers else self._store

    def took(self, source: Source, file: PartFile, length: int) -> bool:
        """`length` bytes came from `source` (0: it waits). Whether to go on with it. Raises `DeadlineError`."""
        with self._lock:
            self.check()
            now = time.monotonic()
            self._rate.count(length, now)
            self._looked_bytes += length
            if length:
                self._fed, self._store_trouble = now, 0
                self._busy, self._busy_s = 0, 0.0
            else:  # who waits for its own source is not slow: patience, not a rate, says when it is enough
                self._looked, self._looked_bytes = now, 0
                if now - self._fed > self._patience_s():
                    self.leave(source, Left(f"{source.name} has had nothing to give for {now - self._fed:.1f} s"))
            if self._taste is not None and source is self._taste.source:
                self._judge(self._taste, length, now)
            elif now - self._looked >= LOOK_S and source is self.first and not self._looking:
                self._look(source, file, now)
            return source is self.first

    def leave(self, source: Source, why: Left) -> float:
        """`source` is asked no further for this route, apart from the store, and a peer that has just no time.

        Returns after how many seconds to go on. Raises `Damaged` if it is the store that has it wrong.
        """
        with self._lock:
            self._last = why
            self.check()
            if self._taste is not None and source is self._taste.source:
                self._taste = None
                if source is self._store:
                    return 0.0
            if isinstance(source, Store):
                return self._endure(why)
            peer = next((peer for peer in self._peers if peer is source), None)
            if peer is None:
                return 0.0
            if isinstance(why, Busy) and (pause_s := self._bear(why)):
                return pause_s
            log.info("left a peer for the next: %s", why)
            self._peers.remove(peer)
            self._left.add(peer.name)
            self._busy, self._busy_s = 0, 0.0
            self._fed = self._looked = time.monotonic()
            self._looked_bytes = 0
            if why.bad:
                self._memory.liars.add(peer.name)
                self._complain(peer.name, "bad")
            elif why.unreachable:
                self._memory.shunned[peer.name] = time.monotonic() + SHUN_S
                self._complain(peer.name, "unreachable")
            return 0.0

    def rested(self) -> None:
        """There was nothing to fetch for a while, for which no source can be blamed."""
        with self._lock:
            now = self._fed = self._looked = time.monotonic()
            self._looked_bytes = 0
            self._rate.rest(now)

    def renew(self) -> None:
        """There is more to fetch than was known: the deadline counts from now."""
        self._give_up = time.monotonic() + self._deadline_s

    def check(self) -> None:
        """Raises `DeadlineError` when it is too late, `ServiceError` when this worker is leaving."""
        if self._closed.is_set():
            raise leaving(self.route)
        if time.monotonic() > self._give_up:
            last = f"; the last failure: {self._last}" if self._last else ""
            what = f"{self.route} did not arrive within {self._deadline_s:.0f} s{last}"
            raise DeadlineError(Problem("weights", what, "see that the object store can be reached from here"))

    def peers(self) -> tuple[Peer, ...]:
        """Who could be asked further."""
        with self._lock:
            return tuple(self._peers)

    def rate(self) -> float:
        """The best that was reached; 0 if too little came to say."""
        return self._rate.best(time.monotonic())

    # ------------------------------------------------------------------------------------------------------------------

    def _take(self, joined: Joined) -> None:
        self._usual = joined.rate or self._memory.rate
        self._peers = [self._make(upstream) for upstream in joined.upstreams]

    def _bear(self, why: Busy) -> float:
        """Seconds until a busy peer is asked again; 0: it has been long enough."""
        left_s = self._chunk_deadline_s - self._busy_s
        if self._busy == BUSY_TRIES or left_s <= 0:
            return 0.0
        pause_s = min(why.retry_s or BUSY_PAUSE_S, left_s)
        self._busy += 1
        self._busy_s += pause_s
        self._looked, self._looked_bytes = time.monotonic() + pause_s, 0  # a pause is no slowness
        return pause_s

    def _endure(self, why: Left) -> float:
        """The store is tried again, after a pause; what it has wrong time after time is damaged."""
        self._store_trouble += 1
        if why.bad and self._store_trouble >= STORE_TRIES:
            what = f"{why} ({STORE_TRIES} tries)"
            raise Damaged(Problem("weights", what, "the learner's next publication replaces it; check the disk"))
        return STORE_PAUSE_S * min(self._store_trouble, 10)

    def _patience_s(self) -> float:
        """Longer for who is further down: when a source dries up, those next to it must be the first to act."""
        return (2 + len(self._peers)) * self._chunk_deadline_s

    def _look(self, source: Source, file: PartFile, now: float) -> None:
        """Whether there is better than `source`: asked in a thread beside, so that the bytes go on coming meanwhile."""
        rate = self._looked_bytes / (now - self._looked)
        self._looked, self._looked_bytes = now, 0
        settled = self._usual and rate >= self._usual / 2 and (self._tasted or now - self._began < STRANGE_S)
        if source is self._store or not settled:
            self._looking = True
            threading.Thread(target=self._look_beside, args=(source, file, rate), name="look", daemon=True).start()

    def _look_beside(self, source: Source, file: PartFile, rate: float) -> None:
        try:
            if source is self._store:
                self._look_for_peers()
            else:
                self._look_for_better(source, file, rate)
        except (DeadlineError, ServiceError) as error:
            log.debug("too late to look for better: %s", error)
        finally:
            self._looking = False

    def _look_for_peers(self) -> None:
        if self._join is None:
            return
        with self._lock:
            avoided = self._memory.avoided() | self._left
        try:
            joined = self._join(avoided)
        except ServiceError as error:
            log.debug("the store it is: %s", error)
            return
        with self._lock:
            if self.first is self._store:
                self._take(joined)

    def _look_for_better(self, source: Source, file: PartFile, rate: float) -> None:
        with self._lock:
            others = self._peers[1:]
        near = file.next + max(LAG_CHUNKS, int(LAG_S * rate / file.part.chunk_bytes))
        itself_ahead = (source.landed(file) or 0) > near
        reached = {other.name: other.landed(file) for other in others}
        with self._lock:
            if source is not self.first:
                return
            for other in [other for other in self._peers[1:] if other.name in reached]:
                has = reached[other.name]
                if has is None:
                    self._peers.remove(other)
                    self._left.add(other.name)
                elif has > near:
                    self._turn_to(other, source, file, rate, itself_ahead)
                    return
            # Where nobody knows what is usual, or it is what a slow one taught: time tells who may be slow.
            strange = (not self._usual or rate >= self._usual / 2) and time.monotonic() - self._began < STRANGE_S
            if len(self._peers) == 1 and not strange:
                self._begin_taste(self._store, file, rate)

    def _turn_to(self, other: Peer, source: Source, file: PartFile, rate: float, itself_ahead: bool) -> None:
        if itself_ahead:  # its line may be slow, or this worker's own
            self._begin_taste(other, file, rate)
        else:
            self.leave(source, Left(f"{source.name} is slow ({rate:.3g} bytes/s), {other.name} is ahead of it"))
            self._prefer(other)

    def _begin_taste(self, source: Source, file: PartFile, rate: float) -> None:
        """Each source once, and not for the end of a part."""
        if source.name not in self._tasted and len(file.part.chunks) - file.next > TASTE_CHUNKS:
            self._tasted.add(source.name)
            self._taste = Probe(source, rate, time.monotonic())

    def _prefer(self, peer: Peer) -> None:
        self._peers.remove(peer)
        self._peers.insert(0, peer)

    def _judge(self, taste: "Probe", length: int, now: float) -> None:
        taste.bytes += length
        taste.chunks += 1 if length else 0
        if length and taste.chunks == TASTE_CHUNKS // 2:
            taste.since, taste.bytes = now, 0
        if taste.chunks < TASTE_CHUNKS:
            return
        self._taste = None
        self._looked, self._looked_bytes = now, 0
        rate = taste.bytes / max(now - taste.since, 1e-6)
        if rate >= 2 * taste.rate and self._peers:
            slow = self._peers[0]
            self.leave(slow, Left(f"{slow.name} is slow ({taste.rate:.3g} bytes/s), {taste.source.name} is not"))
            if isinstance(taste.source, Peer):
                self._prefer(taste.source)


def leaving(route: str) -> ServiceError:
    what = f"{route} was not fetched: this worker is leaving"
    return ServiceError(Problem("weights", what, "another worker fetches it for itself"))


@dataclass
class Probe:
    """Of another source: what was had from the one before (bytes/s), since when, and what came.

    The first half is not counted: it took a connection and its slow start.
    """

    source: Source
    rate: float
    since: float
    bytes: int = 0
    chunks: int = 0
