"""What a worker remembers of its peers from one route to the next, and the rate at which it fetches."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from echo_queue.queue import Upstream
from workers.weights.peers.peer_source import PeerSource

FADE = 0.75
"""What an old rate is worth at each new one."""
WINDOW_S = 1.0
WINDOW_BYTES = 4 << 20
"""Less than this says nothing about a rate."""


@dataclass
class PeerHistory:
    """What a worker remembers of its peers beyond one route."""

    liars: set[str] = field(default_factory=set)
    shunned: dict[str, float] = field(default_factory=dict)
    """Peer → until when."""
    peers: dict[Upstream, PeerSource] = field(default_factory=dict)
    """With their open connections."""
    rate: float = 0.0
    """Bytes/s that this worker has fetched at."""

    def learn(self, rate: float) -> None:
        """A better rate counts at once, a lower one bit by bit: it may have been the source that was slow."""
        if rate:
            self.rate = max(rate, FADE * self.rate)

    def keep(self, peers: Collection[PeerSource]) -> None:
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
        """Nothing was to be fetched since the last bytes: that time does not count."""
        self._best = max(self._best, self._over(self._last_s))
        self._since, self._bytes = now_s, 0

    def best(self, now_s: float) -> float:
        """0 if too little came to say."""
        return self._best or self._over(now_s)

    def _over(self, now_s: float) -> float:
        return self._bytes / (now_s - self._since) if self._bytes >= WINDOW_BYTES and now_s > self._since else 0.0
