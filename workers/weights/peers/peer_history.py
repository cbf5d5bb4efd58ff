"""The memory of peers that a worker keeps from one route to the next, and the rate at which it fetches."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from echo_queue.queue import Upstream
from workers.weights.peers.peer_source import PeerSource

FADE = 0.75
"""The factor by which an old rate is lowered at each new one."""
WINDOW_S = 1.0
WINDOW_BYTES = 4 << 20
"""The fewest bytes from which a rate is computed."""


@dataclass
class PeerHistory:
    """The peers that a worker knows, beyond one route. `liars` served a bad chunk and are never asked again."""

    liars: set[str] = field(default_factory=set)
    shunned: dict[str, float] = field(default_factory=dict)
    """Maps each peer that could not be reached to the time until which it is not asked (monotonic clock)."""
    peers: dict[Upstream, PeerSource] = field(default_factory=dict)
    """The peers as sources, with their open connections."""
    rate: float = 0.0
    """The rate in bytes/s at which this worker fetches; 0: unknown."""

    def learn(self, rate: float) -> None:
        """Takes over a higher rate at once, and a lower one step by step, because the source may have been slow."""
        if rate:
            self.rate = max(rate, FADE * self.rate)

    def keep(self, peers: Collection[PeerSource]) -> None:
        """Forgets all other peers and closes their connections: most of them will never be asked again."""
        for known, peer in tuple(self.peers.items()):
            if peer not in peers:
                self.peers.pop(known, None)
                peer.close()

    def avoided(self) -> set[str]:
        """Returns the peers that are not to be asked now."""
        now = time.monotonic()
        return self.liars | {name for name, until in self.shunned.items() if until > now}


class Rate:
    """Measures the best rate over a whole window, in bytes/s; before the first window ends, the rate so far."""

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
        """Leaves out the time since the last bytes, in which there was nothing to fetch."""
        self._best = max(self._best, self._over(self._last_s))
        self._since, self._bytes = now_s, 0

    def best(self, now_s: float) -> float:
        """Returns the best rate, 0 if too few bytes came to compute one."""
        return self._best or self._over(now_s)

    def _over(self, now_s: float) -> float:
        return self._bytes / (now_s - self._since) if self._bytes >= WINDOW_BYTES and now_s > self._since else 0.0
