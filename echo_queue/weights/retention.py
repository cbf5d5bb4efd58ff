"""Finds the published versions and the latest of them, and prunes those that no role can need.

- Redis holds the pointer to the latest version; `latest` finds the same version by listing if Redis has lost it.
- A version that a role can still need stays, and so does every version from there back to one that has an anchor, so
  that a path always leads to it. Pruning removes manifests first, so that no reader sees a version in part.
"""

from collections.abc import Collection, Mapping

from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.queue import staleness_rules
from echo_queue.records import Published, Version
from echo_queue.weights.catalogue import Entry, catalogue
from echo_queue.weights.manifest import NAME, ROUTE, digest, manifest_key
from echo_queue.weights.reader import open_manifest
from echo_queue.weights.signatures import SignatureVerifier

KEEP = 3
"""The number of newest published versions that always stay: the latest, and those that slow readers still fetch."""


def expendable(
    versions: Mapping[Version, bool],
    newest: Version,
    s: int,
    leased: Collection[Version] = (),
    keep: int = KEEP,
) -> list[Version]:
    """Returns the published `versions` that no role can need once `newest` is published, oldest first.

    `versions`: True if the version has an anchor. Workers fetch only the version that is latest when they check, and
    may be slow to finish: the `keep` newest stay. A worker within `s` updates may still be asked for any version down
    to `newest` − s: those stay too, and so do those that are `leased`. Every version that a path to one of them may
    lead over also stays: all back to the newest anchored one but one, since a slow worker may have started from that.
    Versions newer than `newest` are never returned.
    """
    ours = sorted(version for version in versions if version <= newest)
    needed = {version for version in ours if version in leased} | set(ours[max(0, len(ours) - keep) :])
    needed |= {one for one in ours if one.lineage == newest.lineage and one.number >= newest.number - s}
    floors: dict[int, Version] = {}
    for version in sorted(needed, reverse=True):
        older = [one for one in ours if one.lineage == version.lineage and one <= version]
        whole = [one for one in older if versions[one]]
        floors[version.lineage] = whole[-2] if len(whole) > 1 else older[0]
    return [one for one in ours if one.lineage not in floors or one < floors[one.lineage]]


def latest(
    store: ObjectStore, verifier: SignatureVerifier, forks: Mapping[int, Version] | None = None
) -> Published | None:
    """Returns the newest version that is whole and not abandoned, found by listing manifests; None if there is none.

    A version whose manifest this run's key has not signed does not count.
    """
    for version, entry in sorted(catalogue(store).items(), reverse=True):
        if not entry.manifest or staleness_rules.abandoned(version, forks or {}):
            continue
        key = manifest_key(version)
        try:
            envelope = store.get(key)
            open_manifest(store, envelope, version, verifier)
        except MissingObject:
            continue
        except ServiceError as error:
            if error.problems[0].where != key:
                raise
            continue  # cut short by a killed server, and never acknowledged; or not signed by this run's key
        return Published(version, key, digest(envelope))
    return None


def prune(store: ObjectStore, newest: Version, s: int = 0, leased: Collection[Version] = ()) -> list[Version]:
    """Removes the versions that no role can need once `newest` is published; returns them."""
    pruned = doomed(store, newest, s, leased)
    remove(store, [key for entry in pruned for key in entry.keys])
    return [entry.version for entry in pruned]


def doomed(store: ObjectStore, newest: Version, s: int, leased: Collection[Version]) -> list[Entry]:
    """Returns the expendable versions, and those older than `newest` that were never finished."""
    entries = catalogue(store)
    whole = {version: entry.anchored for version, entry in entries.items() if entry.manifest}
    gone = set(expendable(whole, newest, s, leased))
    return [entry for version, entry in entries.items() if version in gone or (not entry.manifest and version < newest)]


def remove(store: ObjectStore, keys: Collection[str]) -> None:
    """Removes objects of versions; the documents that make the others visible go first."""
    for wave in (f"/{NAME}", f"/{ROUTE}", ""):
        seen = [key for key in keys if _wave(key) == wave]
        if seen:
            store.delete(seen)


def lineages(store: ObjectStore) -> set[int]:
    """Returns the lineages of which any object is still stored."""
    return {version.lineage for version in catalogue(store)}


def _wave(key: str) -> str:
    return next((ending for ending in (f"/{NAME}", f"/{ROUTE}") if key.endswith(ending)), "")
