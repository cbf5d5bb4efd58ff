"""What the store holds of which versions, by listing alone: no object is read, nothing here is verified.

A route is finished once its document stands, the manifest's own once the manifest stands; that one has no document.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from echo_queue.records import Version
from echo_queue.storage.object_store import ObjectStore, StoredObject
from echo_queue.weights.manifest import FOLDER, NAME, ROUTE, base_of, place_of
from echo_queue.weights.paths import Edge


@dataclass
class RouteFolder:
    """What is stored of a route: its parts' bytes, and whether it has a document."""

    size: int = 0
    sealed: bool = False


@dataclass
class Entry:
    """A version's objects. `manifest`: whether it is there, and so the version."""

    version: Version
    manifest: bool = False
    routes: dict[str, RouteFolder] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    @property
    def main(self) -> str | None:
        """The manifest's own route: the only one without a document. None: only the manifest itself can tell."""
        unsealed = [name for name, route in self.routes.items() if not route.sealed]
        return unsealed[0] if self.manifest and len(unsealed) == 1 else None

    @property
    def anchored(self) -> bool:
        """Whether it is certainly stored whole."""
        return self.manifest and "full" in self.routes and (self.routes["full"].sealed or self.main == "full")

    def edges(self) -> list[Edge]:
        """The routes that are finished, or may be."""
        if not self.manifest:
            return []
        return [Edge(base_of(name), self.version, route.size) for name, route in self.routes.items()]


def catalogue(store: ObjectStore, lineage: int | None = None) -> dict[Version, Entry]:
    """By version, ascending; of one lineage, or of all."""
    return sort(store.list(FOLDER if lineage is None else f"{FOLDER}{lineage:04d}/"))


def sort(listed: Iterable[StoredObject]) -> dict[Version, Entry]:
    entries: dict[Version, Entry] = {}
    for stored in listed:
        place = place_of(stored.key)
        if place is None:
            continue
        entry = entries.setdefault(place.version, Entry(place.version))
        entry.keys.append(stored.key)
        if not place.route:
            entry.manifest |= place.file == NAME
            continue
        route = entry.routes.setdefault(place.route, RouteFolder())
        if place.file == ROUTE:
            route.sealed = True
        else:
            route.size += stored.size
    return dict(sorted(entries.items()))
