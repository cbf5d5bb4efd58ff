"""Which published versions there are, which is the latest, and which may go.

- What is latest stands in Redis; `latest` finds the same by listing, should Redis have lost it.
- What stays is what somebody can still need, and every version from there back to one that is stored whole: so there
  always is a path to it. Pruning removes manifests first, so that a version is never seen in part.
"""

from collections.abc import Collection, Mapping

from echo_queue.errors import ServiceError
from echo_queue.queue import staleness
from echo_queue.records import Published, Version
from echo_queue.storage.object_store import MissingObject, ObjectStore
from echo_queue.weights.catalogue import Entry, catalogue
from echo_queue.weights.manifest import NAME, ROUTE, digest, manifest_key
from echo_queue.weights.reader import open_manifest
from echo_queue.weights.signatures import SignatureVerifier

KEEP = 3
"""The newest published versions that always stay: the latest, and those that slow readers are still fetching."""


def expendable(
    versions: Mapping[Version, bool],
    newest: Version,
    s: int,
    leased: Collection[Version] = (),
    keep: int = KEEP,
) -> list[Version]:
    """Of the published `versions` (True: stored whole), those nobody can need once `newest` is out; oldest first.

    Workers fetch only what is latest when they look, and may be slow to finish: the `keep` newest stay. A worker
    within `s` updates may still be asked for any version down to `newest` − s: they stay too, and so do those that are
    `leased`. With them stays what their path may lead over: all back to the newest whole one but one, since who comes
    late may have set out from that. What is newer than `newest` is not ours to judge.
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
    """The newest version that is whole and not abandoned, rebuilt by listing manifests; None if there is none.

    One that this run's key has not signed is none.
    """
    for version, entry in sorted(catalogue(store).items(), reverse=True):
        if not entry.manifest or staleness.abandoned(version, forks or {}):
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
            continue  # cut short by a killed server, and never acknowledged; or not ours
        return Published(version, key, digest(envelope))
    return None


def prune(store: ObjectStore, newest: Version, s: int = 0, leased: Collection[Version] = ()) -> list[Version]:
    """Removes what nobody can need once `newest` is published; returns the versions removed."""
    gone = doomed(store, newest, s, leased)
    remove(store, [key for entry in gone for key in entry.keys])
    return [entry.version for entry in gone]


def doomed(store: ObjectStore, newest: Version, s: int, leased: Collection[Version]) -> list[Entry]:
    """What is expendable, and what is older than `newest` and was never finished."""
    entries = catalogue(store)
    whole = {version: entry.anchored for version, entry in entries.items() if entry.manifest}
    gone = set(expendable(whole, newest, s, leased))
    return [entry for version, entry in entries.items() if version in gone or (not entry.manifest and version < newest)]


def remove(store: ObjectStore, keys: Collection[str]) -> None:
    """Objects of versions; what makes the others visible goes first."""
    for wave in (f"/{NAME}", f"/{ROUTE}", ""):
        seen = [key for key in keys if _wave(key) == wave]
        if seen:
            store.delete(seen)


def lineages(store: ObjectStore) -> set[int]:
    """Those that published anything that is still there."""
    return {version.lineage for version in catalogue(store)}


def _wave(key: str) -> str:
    return next((ending for ending in (f"/{NAME}", f"/{ROUTE}") if key.endswith(ending)), "")
