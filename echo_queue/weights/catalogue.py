"""Lists what the store holds of each version. No object is read, and nothing here is verified.

A route is finished once its document is stored. The manifest's own route has no document: it is finished once the
manifest is stored.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from echo_queue.connections.storage.object_store import ObjectStore, StoredObject
from echo_queue.records import Version
from echo_queue.weights.cheapest_path import Edge
from echo_queue.weights.manifest import FOLDER, NAME, ROUTE, base_of, place_of


@dataclass
class RouteFolder:
    """The stored objects of a route: `size` counts its parts' bytes, `sealed` is whether it has a document."""

    size: int = 0
    sealed: bool = False


@dataclass
class Entry:
    """A version's objects. `manifest`: whether the manifest is stored, which means that the version is published."""

    version: Version
    manifest: bool = False
    routes: dict[str, RouteFolder] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    @property
    def main(self) -> str | None:
        """The manifest's own route: the only one without a document. None: the listing does not tell which it is."""
        unsealed = [name for name, route in self.routes.items() if not route.sealed]
        return unsealed[0] if self.manifest and len(unsealed) == 1 else None

    @property
    def anchored(self) -> bool:
        """True if the listing proves that the version has a finished anchor."""
        return self.manifest and "full" in self.routes and (self.routes["full"].sealed or self.main == "full")

    def edges(self) -> list[Edge]:
        """Returns the routes that are finished, and those that may be as far as the listing shows."""
        if not self.manifest:
            return []
        return [Edge(base_of(name), self.version, route.size) for name, route in self.routes.items()]


def catalogue(store: ObjectStore, lineage: int | None = None) -> dict[Version, Entry]:
    """Lists the versions of one lineage, or of all lineages, in ascending order."""
    return sort(store.list(FOLDER if lineage is None else f"{FOLDER}{lineage:04d}/"))


def sort(listed: Iterable[StoredObject]) -> dict[Version, Entry]:
    """Groups listed objects by version, in ascending order; objects that belong to no version are left out."""
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
