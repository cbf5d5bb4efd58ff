"""The directory of the peer exchange, by which workers fetch weights from one another: `library/peers.lua`."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Client
from echo_queue.queue.types import Complaint, Joined, Peer

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


class PeerDirectory(Client):
    """Tells a worker which peers of its region to fetch from, as Redis user `worker`, through `library/peers.lua`."""

    ROLE: ClassVar["Role"] = "worker"

    def join(self, peer: Peer, route: str, avoided: Collection[str] = (), *, restart: bool = False) -> Joined:
        """Gives `peer` a place in the region's chain for a route, or confirms it; returns the peers to fetch from.

        `avoided`: upstreams that it does not want again. `restart`: it has nothing of the route, so a place that an
        earlier process of the same name had does not count. Raises `ServiceError` for a malformed argument.
        """
        itself = (peer.address, peer.rate, peer.leaf, f"{peer.usd_per_gb:.6g}")
        reply = self._caller.call("join", peer.worker, peer.region, route, int(restart), *itself, *sorted(avoided))
        return replies.joined_of(reply)

    def report(self, worker: str, peer: str, reason: Complaint) -> int:
        """Reports that `peer` served `worker` a bad chunk, cannot be reached from it, or gave it nothing ("dry").

        Returns how many workers reported the same lately. Two of them make the peer a leaf for a while; a single
        reporter may be the broken one.
        """
        return int(self._caller.call("report", worker, peer, reason))

    def withdraw(self, worker: str) -> None:
        """Removes `worker` as an upstream of other workers, because it is leaving."""
        self._caller.call("withdraw", worker)

    def server_address(self) -> tuple[str, int]:
        """Returns host and port of this client's Redis server; the host is empty for a Unix socket."""
        pool: Any = self._caller.client.connection_pool
        if hasattr(pool, "get_master_address"):
            host, port = pool.get_master_address()
            return str(host), int(port)
        settings = pool.connection_kwargs
        return ("", 0) if "path" in settings else (settings.get("host", "localhost"), settings.get("port", 6379))
