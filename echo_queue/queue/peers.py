"""Which workers feed one another with weights: `library/peers.lua`."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Client
from echo_queue.queue.types import Complaint, Joined, Peer

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


class PeerDirectory(Client):
    """A worker's way to the others of its region."""

    ROLE: ClassVar["Role"] = "worker"

    def join(self, peer: Peer, route: str, left: Collection[str] = (), *, anew: bool = False) -> Joined:
        """`peer` fetches a route: it takes its place in the region's chain, or keeps it, and is told who feeds it.

        `left`: upstreams that it does not want again. `anew`: it has nothing of the route; a place that its name may
        have from an earlier life does not count. Raises `ServiceError` for words of a form that we never use.
        """
        itself = (peer.address, peer.rate, peer.leaf, f"{peer.usd_per_gb:.6g}")
        reply = self._caller.call("join", peer.worker, peer.region, route, int(anew), *itself, *sorted(left))
        return replies.joined_of(reply)

    def report(self, worker: str, peer: str, reason: Complaint) -> int:
        """`peer` served `worker` a bad chunk, or cannot be reached from it. Returns how many workers said so lately.

        Two of them make it a leaf for a while: one alone may be the one that is broken.
        """
        return int(self._caller.call("report", worker, peer, reason))

    def withdraw(self, worker: str) -> None:
        """`worker` feeds nobody any more, as it is leaving."""
        self._caller.call("withdraw", worker)

    def server_address(self) -> tuple[str, int]:
        """Host and port of the Redis that this client speaks to; the host is empty for a socket of this machine."""
        pool: Any = self._caller.client.connection_pool
        if hasattr(pool, "get_master_address"):
            host, port = pool.get_master_address()
            return str(host), int(port)
        settings = pool.connection_kwargs
        return ("", 0) if "path" in settings else (settings.get("host", "localhost"), settings.get("port", 6379))
