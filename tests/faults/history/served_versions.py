"""The record of what rollout workers were served: each version that was swapped in, and which bytes it took.

`watch` makes the real swap and the real peer exchange of this process write it down; `read` is for the judge. A version
is served *as published* if, after the swap, every tensor of the live engine has the digest that the
signed manifest names.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

from echo_queue.weights import Manifest, Route
from echo_queue.weights.tensors import matches
from workers.weights.cache.caching_transport import FetchedRoute
from workers.weights.peers.exchange import PeerExchange
from workers.weights.swap import WeightSwap

SWAPS, ROUTES = "served", "fetched"
AS_PUBLISHED = "as published"


@dataclass(frozen=True)
class Served:
    """`swaps`: version → how often it was loaded as published. `wrong`: lines about those that were not.

    `routes`: routes fetched, "anchors" and "differences"; `bytes`: of these, from the "store" and from a "peer".
    """

    swaps: Counter[str]
    wrong: tuple[str, ...]
    routes: Counter[str]
    bytes: Counter[str]

    def __str__(self) -> str:
        routes = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.routes.items()))
        sources = ", ".join(f"{count / 1e6:,.1f} MB from the {source}" for source, count in sorted(self.bytes.items()))
        return f"{self.swaps.total():,} swaps of {len(self.swaps):,} versions {AS_PUBLISHED}; {routes}; {sources}"


def watch(directory: Path) -> None:
    """Makes this process record all swaps and routes in files of `directory`, from now on."""
    WeightSwap.swap = partialmethod(_swap, directory / SWAPS, WeightSwap.swap)  # type: ignore[assignment]
    fetch_route = partialmethod(_fetch, directory / ROUTES, PeerExchange.fetch_route)
    PeerExchange.fetch_route = fetch_route  # type: ignore[assignment]


def read(directory: Path) -> Served:
    swaps = [line.split(" ", 1) for line in _lines(directory / SWAPS)]
    routes = [line.split(" ") for line in _lines(directory / ROUTES)]
    fetched = Counter[str]()
    for _, store_bytes, peer_bytes in routes:
        fetched.update(store=int(store_bytes), peer=int(peer_bytes))
    return Served(
        swaps=Counter(version for version, how in swaps if how == AS_PUBLISHED),
        wrong=tuple(" ".join(line) for line in swaps if line[1] != AS_PUBLISHED),
        routes=Counter("anchors" if name.endswith("/full") else "differences" for name, *_ in routes),
        bytes=fetched,
    )


def _swap(self: WeightSwap, file: Path, swap: Callable[..., None], manifest: Manifest, tensors: Any) -> None:
    swap(self, manifest, tensors)
    wrong = [info.name for info in manifest.tensors if not matches(self.engine.weight(info.name), info)]
    _note(file, f"{manifest.version} " + (f"differs in {', '.join(wrong)}" if wrong else AS_PUBLISHED))


def _fetch(
    self: PeerExchange, file: Path, fetch: Callable[..., FetchedRoute], route: Route, deadline_s: float
) -> FetchedRoute:
    fetched = fetch(self, route, deadline_s)
    if fetched.store_bytes or fetched.peer_bytes:
        _note(file, f"{route.name} {fetched.store_bytes} {fetched.peer_bytes}")
    return fetched


def _note(file: Path, line: str) -> None:
    with file.open("a") as notes:  # one write: several processes share the file
        notes.write(f"{line}\n")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
