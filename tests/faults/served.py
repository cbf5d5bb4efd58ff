"""What rollout workers were served: each version that passed the gate, and which bytes brought it.

`watch` makes the real gate and the real courier of this process write it down; `read` is for who judges. A version is
served *as published* if, after the swap, every tensor of the live engine has the digest that the signed manifest names.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

from echo_queue.weights import Manifest, Route
from echo_queue.weights.tensors import matches
from workers.weights.peers.exchange import Brought, PeerExchange
from workers.weights.swap import WeightSwap

SWAPS, ROUTES = "served", "brought"
AS_PUBLISHED = "as published"


@dataclass(frozen=True)
class Served:
    """`swaps`: version → how often it was loaded as published. `wrong`: lines about those that were not.

    `ways`: routes brought, "anchors" and "differences"; `bytes`: of these, from the "store" and from a "peer".
    """

    swaps: Counter[str]
    wrong: tuple[str, ...]
    ways: Counter[str]
    bytes: Counter[str]

    def __str__(self) -> str:
        ways = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.ways.items()))
        sources = ", ".join(f"{count / 1e6:,.1f} MB from the {source}" for source, count in sorted(self.bytes.items()))
        return f"{self.swaps.total():,} swaps of {len(self.swaps):,} versions {AS_PUBLISHED}; {ways}; {sources}"


def watch(directory: Path) -> None:
    """From now on this process notes all swaps and routes in files of `directory`."""
    WeightSwap.swap = partialmethod(_swap, directory / SWAPS, WeightSwap.swap)  # type: ignore[assignment]
    PeerExchange.bring = partialmethod(_bring, directory / ROUTES, PeerExchange.bring)  # type: ignore[assignment]


def read(directory: Path) -> Served:
    swaps = [line.split(" ", 1) for line in _lines(directory / SWAPS)]
    routes = [line.split(" ") for line in _lines(directory / ROUTES)]
    brought = Counter[str]()
    for _, store_bytes, peer_bytes in routes:
        brought.update(store=int(store_bytes), peer=int(peer_bytes))
    return Served(
        swaps=Counter(version for version, how in swaps if how == AS_PUBLISHED),
        wrong=tuple(" ".join(line) for line in swaps if line[1] != AS_PUBLISHED),
        ways=Counter("anchors" if name.endswith("/full") else "differences" for name, *_ in routes),
        bytes=brought,
    )


def _swap(self: WeightSwap, file: Path, swap: Callable[..., None], manifest: Manifest, tensors: Any) -> None:
    swap(self, manifest, tensors)
    wrong = [info.name for info in manifest.tensors if not matches(self.engine.weight(info.name), info)]
    _note(file, f"{manifest.version} " + (f"differs in {', '.join(wrong)}" if wrong else AS_PUBLISHED))


def _bring(self: PeerExchange, file: Path, bring: Callable[..., Brought], route: Route, deadline_s: float) -> Brought:
    brought = bring(self, route, deadline_s)
    if brought.store_bytes or brought.peer_bytes:
        _note(file, f"{brought.route} {brought.store_bytes} {brought.peer_bytes}")
    return brought


def _note(file: Path, line: str) -> None:
    with file.open("a") as notes:  # one write: several processes share the file
        notes.write(f"{line}\n")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
