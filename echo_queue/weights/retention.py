"""Which published versions there are, which is the latest, and which may go.

What is latest stands in Redis; `latest` finds the same by listing, should Redis have lost it. Pruning removes
a version's manifest first, so that it is never seen in part.
"""

from collections.abc import Collection, Mapping

from echo_queue import staleness
from echo_queue.errors import ServiceError
from echo_queue.records import Published, Version
from echo_queue.store import MissingObject, ObjectStore
from echo_queue.weights.manifest import FOLDER, NAME, Manifest, digest, version_of

KEEP = 3
"""The newest published versions that always stay: the latest, and those that slow readers are still fetching."""


def expendable(versions: Collection[Version], newest: Version, s: int, keep: int = KEEP) -> list[Version]:
    """Of the published `versions`, those nobody can need once `newest` is out; oldest first.

    Workers fetch only what is latest when they look, and may be slow to finish: the `keep` newest stay. A worker
    within `s` updates may still be asked for any version down to `newest` − s: they stay too. What is newer than
    `newest` is not ours to judge.
    """
    ours = sorted(version for version in versions if version <= newest)
    older = ours[: max(0, len(ours) - keep)]
    return [version for version in older if version.lineage < newest.lineage or version.number < newest.number - s]


def latest(store: ObjectStore, forks: Mapping[int, Version] | None = None) -> Published | None:
    """The newest version that is whole and not abandoned, rebuilt by listing manifests; None if there is none."""
    versions = {version: key for key in _keys(store) if key.endswith(NAME) and (version := version_of(key))}
    for version in sorted(versions, reverse=True):
        if staleness.abandoned(version, forks or {}):
            continue
        try:
            data = store.get(versions[version])
            Manifest.decode(data, versions[version])
        except MissingObject:
            continue
        except ServiceError as error:
            if error.problems[0].where != versions[version]:
                raise
            continue  # cut short by a killed server, and never acknowledged
        return Published(version, versions[version], digest(data))
    return None


def prune(store: ObjectStore, newest: Version, s: int = 0) -> list[Version]:
    """Removes what nobody can need once `newest` is published; returns the versions removed."""
    keys = _keys(store)
    gone = expendable({version for key in keys if (version := version_of(key))}, newest, s)
    doomed = [key for key in keys if version_of(key) in gone]
    store.delete([key for key in doomed if key.endswith(NAME)])
    store.delete([key for key in doomed if not key.endswith(NAME)])
    return gone


def lineages(store: ObjectStore) -> set[int]:
    """Those that published anything that is still there."""
    return {version.lineage for key in _keys(store) if (version := version_of(key))}


def _keys(store: ObjectStore) -> list[str]:
    return [stored.key for stored in store.list(FOLDER)]
