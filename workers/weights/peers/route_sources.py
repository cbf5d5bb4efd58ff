"""The sources of one route where workers feed one another: the peers in the queue's order, then the store.

The clocks, counters and threads are here; `source_choice` decides from values alone what is done.

- A peer that dies, is silent, stays busy or lies is dropped for this route, and the next one is read. A peer that has
  served a bad chunk is never asked again, and is reported. A peer that cannot be reached is reported too, and is not
  asked for a while. The same holds for one that had nothing to give, once another source has given the bytes at once:
  if none does, they all waited for the same. A silent peer may be asked again after one deadline.
- A thread of its own asks other sources how far they are, so that bytes go on coming meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from echo_queue.errors import DeadlineError, ServiceError
from echo_queue.queue import Joined, Upstream
from echo_queue.queue.types import Complaint
from workers.weights.cache.part_file import PartFile
from workers.weights.cache.sources import RouteSources, Source, SourceFailed, StoreSource
from workers.weights.peers.peer_history import PeerHistory, Rate
from workers.weights.peers.peer_source import BusyPeer, DryPeer, PeerSource, SilentPeer, UnreachablePeer
from workers.weights.peers.source_choice import (
    PROBE_CHUNKS,
    Answers,
    Ask,
    Choice,
    Drop,
    EndProbe,
    FailureView,
    Probe,
    ProbeView,
    Retry,
    SourceView,
    Switch,
    choose,
    choose_after_failure,
    look_is_due,
)

log = logging.getLogger(__name__)

SHUN_S = 60.0
"""The time for which a peer that could not be reached, or gave nothing, is not asked again."""


@dataclass
class RunningProbe:
    """A probe of `source`. `rate_before`: the rate in bytes/s of the source before it.

    `since_s` is the time at which the second half of its chunks began, and `bytes` counts the bytes since then.
    """

    source: Source
    rate_before: float
    since_s: float
    bytes: int = 0
    chunks: int = 0

    def count(self, length: int, now_s: float) -> None:
        self.bytes += length
        self.chunks += 1 if length else 0
        if length and self.chunks == PROBE_CHUNKS // 2:
            self.since_s, self.bytes = now_s, 0

    def view(self, now_s: float) -> ProbeView:
        return ProbeView(self.chunks, self.bytes / max(now_s - self.since_s, 1e-6), self.rate_before)


class PeerRouteSources(RouteSources):
    """The sources of one route, for the threads of one download.

    `joined`: the queue's answer, which names the peers; None: only the store is read. `join` asks the queue again, for
    other peers than those given; `make` makes the source of a peer; `complain` reports a peer to the queue.
    """

    def __init__(
        self,
        route: str,
        store: StoreSource,
        history: PeerHistory,
        joined: Joined | None,
        *,
        join: Callable[[set[str]], Joined],
        make: Callable[[Upstream], PeerSource],
        complain: Callable[[str, Complaint], None],
        deadline_s: float,
        chunk_deadline_s: float,
        closed: threading.Event,
    ) -> None:
        super().__init__(route, store, deadline_s=deadline_s, closed=closed)
        self._history = history
        self._join = join if joined is not None else None
        self._make = make
        self._complain = complain
        self._chunk_deadline_s = chunk_deadline_s
        self._dropped: set[str] = set()
        self._dry: set[str] = set()
        """The peers that were left because they gave nothing, until another source gives or fails to give in time."""
        self._dry_s = 0.0
        """When the last of them was left."""
        self._peers: list[PeerSource] = []
        self._usual = 0.0
        self._rate = Rate(time.monotonic())
        self._began_s = self._looked_s = self._fed_s = time.monotonic()
        self._looked_bytes = 0
        self._asking = False
        self._busy_tries = 0
        self._busy_s = 0.0
        self._probe: RunningProbe | None = None
        self._probed: set[str] = set()
        if joined is not None:
            self._take(joined)

    # Calls of a download ----------------------------------------------------------------------------------------------

    def current(self, file: PartFile) -> Source:
        with self._lock:
            return self._first()

    def took(self, source: Source, file: PartFile, length: int) -> bool:
        with self._lock:
            self.check()
            now = time.monotonic()
            self._count(source, length, now)
            view = self._view(source, file, starved=not length)
            if look_is_due(view, now):
                self._look_again_from(now)
            self._act(choose(view, now), source, file, view.rate(now))
            return source is self._first()

    def failed(self, source: Source, file: PartFile, why: SourceFailed) -> float:
        """Drops `source` for this route. The store, and a peer that is busy for the moment, are tried again."""
        with self._lock:
            self._last = why
            self.check()
            if self._probe is not None and source is self._probe.source:
                self._probe = None
                if source is self._store:
                    return 0.0
            if source is self._store:
                return self._store_failed(why)
            peer = next((peer for peer in self._peers if peer is source), None)
            return self._peer_failed(peer, why) if peer is not None else 0.0

    def rested(self) -> None:
        with self._lock:
            now = self._fed_s = time.monotonic()
            self._look_again_from(now)
            self._rate.rest(now)

    def end(self, whole: bool) -> None:
        with self._lock:
            peers = tuple(self._peers)
        self._history.keep(peers)
        if whole:
            self._history.learn(self._rate.best(time.monotonic()))

    # State ------------------------------------------------------------------------------------------------------------

    def _first(self) -> Source:
        if self._probe is not None:
            return self._probe.source
        return self._peers[0] if self._peers else self._store

    def _count(self, source: Source, length: int, now: float) -> None:
        self._rate.count(length, now)
        self._looked_bytes += length
        if length:
            self._judge_dry(source.name, now)
            self._fed_s, self._store_failures = now, 0
            self._busy_tries, self._busy_s = 0, 0.0
        else:  # a source that waits for its own source is not slow: patience_s limits it, not a rate
            self._look_again_from(now)
        if self._probe is not None and source is self._probe.source:
            self._probe.count(length, now)

    def _judge_dry(self, giver: str, now: float) -> None:
        """Shuns and reports the peers that gave nothing, if `giver` gave within a deadline of the last one's end."""
        dry, self._dry = self._dry - {giver}, set()
        if now - self._dry_s <= self._chunk_deadline_s:
            for name in sorted(dry):
                self._history.shunned[name] = now + SHUN_S
                self._complain(name, "dry")

    def _look_again_from(self, now: float) -> None:
        self._looked_s, self._looked_bytes = now, 0

    def _view(
        self, source: Source, file: PartFile, *, starved: bool = False, answers: Answers | None = None
    ) -> SourceView:
        probe = self._probe if self._probe is not None and source is self._probe.source else None
        return SourceView(
            source=source.name,
            current=source is self._first() and not self._asking,
            others=tuple(peer.name for peer in self._peers[1:]),
            peers=len(self._peers),
            starved=starved,
            fed_s=self._fed_s,
            began_s=self._began_s,
            looked_s=self._looked_s,
            bytes=self._looked_bytes,
            usual=self._usual,
            chunk_deadline_s=self._chunk_deadline_s,
            next=file.next,
            chunks=len(file.part.chunks),
            chunk_bytes=file.part.chunk_bytes,
            joins=self._join is not None,
            probed=frozenset(self._probed),
            probe=probe.view(time.monotonic()) if probe is not None else None,
            answers=answers,
        )

    def _take(self, joined: Joined) -> None:
        self._usual = joined.rate or self._history.rate
        self._peers = [self._make(upstream) for upstream in joined.upstreams]

    # Actions ----------------------------------------------------------------------------------------------------------

    def _act(self, choice: Choice, source: Source, file: PartFile, rate: float) -> None:
        """Carries out a choice made after a read of `source`, whose rate was `rate` bytes/s since the last check."""
        match choice:
            case Ask(late):
                self._asking, about = True, (source, file, rate, late)
                threading.Thread(target=self._ask, args=about, name="ask peers", daemon=True).start()
            case Probe(name):
                self._probed.add(name)
                self._probe = RunningProbe(self._named(name), rate, time.monotonic())
            case EndProbe():
                self._end_probe()
            case Switch(name, why, dry):
                self._end_probe()
                chosen, slow = self._named(name), self._peers[0]
                self.failed(slow, file, (DryPeer if dry else SourceFailed)(f"{slow.name} {why}"))
                if chosen is not self._store:
                    self._peers.sort(key=lambda peer: peer is not chosen)
            case Drop(name, why, dry) if name == source.name:
                self.failed(source, file, (DryPeer if dry else SourceFailed)(why))
            case Drop(name):
                self._dropped.add(name)
                self._peers = [peer for peer in self._peers if peer.name != name]

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe = None
            self._look_again_from(time.monotonic())

    def _named(self, name: str) -> Source:
        return next((peer for peer in self._peers if peer.name == name), self._store)

    def _peer_failed(self, peer: PeerSource, why: SourceFailed) -> float:
        busy, retry_s = isinstance(why, BusyPeer), getattr(why, "retry_s", 0.0)
        failure = FailureView(
            peer.name, str(why), busy, retry_s, self._busy_tries, self._busy_s, self._chunk_deadline_s
        )
        choice = choose_after_failure(failure)
        if isinstance(choice, Retry):
            self._busy_tries += 1
            self._busy_s += choice.pause_s
            self._look_again_from(time.monotonic() + choice.pause_s)  # the pause does not count as slowness
            return choice.pause_s
        log.info("dropped a peer, reading the next source: %s", why)
        now = time.monotonic()
        self._peers.remove(peer)
        self._busy_tries, self._busy_s = 0, 0.0
        self._look_again_from(now)
        if isinstance(why, DryPeer):  # the time without bytes goes on: it is a budget for all sources
            self._dry.add(peer.name)
            self._dry_s = now
        else:
            self._fed_s = now
        if isinstance(why, SilentPeer):
            self._history.shunned[peer.name] = now + self._chunk_deadline_s
        else:
            self._dropped.add(peer.name)
        if why.bad:
            self._history.liars.add(peer.name)
            self._complain(peer.name, "bad")
        elif isinstance(why, UnreachablePeer):
            self._history.shunned[peer.name] = now + SHUN_S
            self._complain(peer.name, "unreachable")
        return 0.0

    # Probe thread -----------------------------------------------------------------------------------------------------

    def _ask(self, source: Source, file: PartFile, rate: float, late: bool) -> None:
        """Probe thread: looks for a better source than `source`, once."""
        try:
            if isinstance(source, PeerSource):
                self._ask_peers(source, file, rate, late)
            else:
                self._ask_for_peers()
        except (DeadlineError, ServiceError) as error:
            log.debug("too late to look for a better source: %s", error)
        finally:
            self._asking = False

    def _ask_for_peers(self) -> None:
        """Probe thread: asks the queue whether peers can serve the route that is read from the store."""
        assert self._join is not None, "there are no peers to ask for"
        with self._lock:
            avoided = self._history.avoided() | self._dropped
        try:
            joined = self._join(avoided)
        except ServiceError as error:
            log.debug("the store is still read: %s", error)
            return
        with self._lock:
            if self._first() is self._store:
                self._take(joined)

    def _ask_peers(self, source: PeerSource, file: PartFile, rate: float, late: bool) -> None:
        """Probe thread: asks all peers of the route how far they are, and acts on their answers."""
        with self._lock:
            asked = [source, *self._peers[1:]]
        answers = Answers(rate, file.next, {peer.name: peer.landed(file) for peer in asked}, late)
        with self._lock:
            while source is self._first():
                choice = choose(self._view(source, file, answers=answers), time.monotonic())
                self._act(choice, source, file, rate)
                if not isinstance(choice, Drop):
                    return
