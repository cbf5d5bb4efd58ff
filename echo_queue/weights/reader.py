"""Reads published versions: manifests that this run's key has signed, the cheapest path to one, every chunk verified.

Nothing unchecked is ever returned, and nothing is unpickled. Wrong bytes are read again, in case the network corrupted
them; if they stay wrong, one clear error is raised. No path leads back to an older version.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from echo_queue.connections.storage.object_store import LargeObject, MissingObject, ObjectStore
from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Published, Version
from echo_queue.weights.catalogue import Entry, catalogue
from echo_queue.weights.cheapest_path import Edge, cheapest
from echo_queue.weights.ciphers import plain
from echo_queue.weights.manifest import (
    DOCUMENT_MAX_BYTES,
    Damaged,
    Manifest,
    Part,
    Route,
    digest,
    folder_name,
    manifest_key,
    route_key,
)
from echo_queue.weights.signatures import Forged, SignatureVerifier

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Damaged",
    "fetch",
    "fetch_along",
    "fetch_parts",
    "find_path",
    "intact",
    "open_manifest",
    "plain",
    "read_manifest",
    "refuse_older",
]

STREAMS = 4
"""The number of parts that are fetched at the same time, and held while one is applied."""
ATTEMPTS = 3
PAUSE_S = 0.1
FIX = "the learner's next publication replaces it; check the disk"


class OlderVersion(ServiceError):
    """The version is older than one that was used here before."""


def refuse_older(version: Version, newest: Version | None) -> None:
    """Raises `OlderVersion` if `version` is older than `newest`. Any version of a later lineage is newer."""
    if newest is not None and version < newest:
        fix = "nothing goes back to it; find out who else writes to this Redis, or publish a newer version"
        raise OlderVersion(Problem("published", f"version {version} is older than {newest}, which was used here", fix))


# Documents ------------------------------------------------------------------------------------------------------------


def read_manifest(store: ObjectStore, published: Published, verifier: SignatureVerifier) -> Manifest:
    """Returns the manifest that `published` points to, and no other. Raises `Damaged` or `Forged`."""
    key = manifest_key(published.version)
    if published.manifest != key:
        raise Damaged(Problem("published", f"version {published.version} cannot be {published.manifest!r:.200}", FIX))
    envelope = _with_retries(key, lambda: _expect_digest(store.get(key, DOCUMENT_MAX_BYTES), published.digest))
    return open_manifest(store, envelope, published.version, verifier)


def open_manifest(store: ObjectStore, envelope: bytes, version: Version, verifier: SignatureVerifier) -> Manifest:
    """Opens a manifest. Raises `Forged`, or `Damaged` if it is not the manifest of exactly this version of this run."""
    key = manifest_key(version)
    manifest = Manifest.decode(verifier.open(envelope, key), key)
    _belongs(key, store, version, manifest.run, manifest.version)
    return manifest


def find_path(
    store: ObjectStore, have: tuple[Version, str] | None, target: Manifest, verifier: SignatureVerifier
) -> tuple[Route, ...]:
    """Returns the path of fewest bytes from `have` (a version and its root), or from nothing, to `target`.

    The path is empty if `have` is the target. Raises `Damaged` if no path leads there, `OlderVersion` if the target is
    older than `have`.
    """
    refuse_older(target.version, have and have[0])
    if have == (target.version, target.root):
        return ()
    if have is not None and have == (target.route.base, target.route.base_root):
        return (target.route,)
    if have is not None and have[0] == target.version:
        have = None
    return _Search(store, target, verifier).path(have)


class _Search:
    """Plans a path from the listing, and again whenever a route turns out to differ from what the listing suggested."""

    def __init__(self, store: ObjectStore, target: Manifest, verifier: SignatureVerifier) -> None:
        self._store, self._target, self._verifier = store, target, verifier
        self._entries = catalogue(store, target.version.lineage)
        self._read: dict[tuple[Version, Version | None], Route | None] = {
            (target.version, target.route.base): target.route
        }
        self._manifests = {target.version: target}

    def path(self, have: tuple[Version, str] | None) -> tuple[Route, ...]:
        while edges := cheapest(self._edges(), have and have[0], self._target.version):
            unread = [edge for edge in edges if (edge.version, edge.base) not in self._read]
            for edge in unread:
                self._read[edge.version, edge.base] = self._route(edge)
            if not unread:
                routes = tuple(route for edge in edges if (route := self._read[edge.version, edge.base]))
                broken = _broken(routes, have, self._target.root)
                if broken is None:
                    return routes
                if broken == routes[0] and broken.base is not None:
                    have = None  # `have` holds other weights than the version of that name
                else:
                    self._read[broken.version, broken.base] = None
        what = "no routes that are whole lead to this version"
        raise Damaged(Problem(manifest_key(self._target.version), what, FIX))

    def _edges(self) -> Iterator[Edge]:
        """Yields each route's edge: as signed where its document has been read, else as listed."""
        listed = {(edge.version, edge.base): edge for entry in self._entries.values() for edge in entry.edges()}
        for ends, edge in listed.items():
            if ends not in self._read:
                yield edge
        for route in self._read.values():
            if route is not None:
                yield Edge(route.base, route.version, route.size)

    def _route(self, edge: Edge) -> Route | None:
        """Reads a route; None if there is no such route, or if its document cannot be trusted."""
        entry = self._entries[edge.version]
        try:
            if entry.routes[folder_name(edge.base)].sealed:
                key = route_key(edge.version, edge.base)
                route = Route.decode(self._verifier.open(self._store.get(key, DOCUMENT_MAX_BYTES), key), key)
                _belongs(key, self._store, edge.version, route.run, route.version)
            else:
                route = self._manifest(entry).route
        except (MissingObject, LargeObject, Damaged, Forged):
            return None  # other routes lead there too
        return route if route.base == edge.base else None

    def _manifest(self, entry: Entry) -> Manifest:
        version = entry.version
        if version not in self._manifests:
            envelope = self._store.get(manifest_key(version), DOCUMENT_MAX_BYTES)
            self._manifests[version] = open_manifest(self._store, envelope, version, self._verifier)
        return self._manifests[version]


def _broken(routes: tuple[Route, ...], have: tuple[Version, str] | None, root: str) -> Route | None:
    """Returns the first route that does not begin at exactly the weights to which the route before it leads."""
    here = have[1] if have is not None and routes[0].base == have[0] else None
    for route in routes:
        if route.base_root != here:
            return route
        here = route.root
    return routes[-1] if here != root else None


def _belongs(key: str, store: ObjectStore, version: Version, run: str, found: Version) -> None:
    if (run, found) != (store.prefix.removesuffix("/"), version):
        raise Damaged(Problem(key, f"is that of version {found} of run {run!r:.80}", FIX))


# Weights --------------------------------------------------------------------------------------------------------------


def fetch(
    store: ObjectStore, published: Published, verifier: SignatureVerifier, chunk_key: bytes | None = None
) -> "dict[str, Tensor]":
    """Returns a version's tensors on the CPU, each with its published shape and type, read from the store alone.

    Tied names map to the same tensor. Raises `Damaged`, `BadDelta`, or `MissingObject` if the version was pruned
    meanwhile.
    """
    manifest = read_manifest(store, published, verifier)
    return fetch_along(store, find_path(store, None, manifest, verifier), manifest, chunk_key)


def fetch_along(
    store: ObjectStore, routes: Sequence[Route], target: Manifest, chunk_key: bytes | None
) -> "dict[str, Tensor]":
    """Returns the tensors of `target` as the path `routes`, which begins with an anchor, makes them. Raises as `fetch`
    does."""
    from echo_queue.weights.apply_path import apply_path
    from echo_queue.weights.tensors import allocate

    tensors = allocate(target)
    apply_path(routes, target, tensors, root=None, parts=partial(fetch_parts, store), chunk_key=chunk_key)
    return tensors


def fetch_parts(store: ObjectStore, route: Route) -> Iterator[tuple[Part, memoryview]]:
    """Yields the parts of a route, each verified; a few are fetched ahead."""
    pending: deque[tuple[Part, Future[bytes]]] = deque()
    with ThreadPoolExecutor(STREAMS) as pool:
        for part in route.parts:
            if len(pending) == STREAMS:
                ready, fetched = pending.popleft()
                yield ready, memoryview(fetched.result())
            pending.append((part, pool.submit(_part, store, part)))
        while pending:
            ready, fetched = pending.popleft()
            yield ready, memoryview(fetched.result())


def intact(part: Part, index: int, chunk: bytes | memoryview) -> bool:
    """Returns whether these bytes are chunk `index` of the part."""
    return len(chunk) == part.length(index) and digest(chunk) == part.chunks[index]


def _part(store: ObjectStore, part: Part) -> bytes:
    def get() -> bytes:
        data = store.get(part.key, part.size)
        view = memoryview(data)
        for index in range(len(part.chunks)):
            if not intact(part, index, view[part.start(index) : part.start(index) + part.chunk_bytes]):
                raise _WrongBytes(f"chunk {index} is not what was published")
        return data

    return _with_retries(part.key, get)


def _expect_digest(data: bytes, expected: str) -> bytes:
    if digest(data) != expected:
        raise _WrongBytes("its bytes are not those that were published")
    return data


class _WrongBytes(Exception):
    """The bytes read are not those that were expected."""


def _with_retries(key: str, get: Callable[[], bytes]) -> bytes:
    """Calls `get` until its bytes are right. Raises `Damaged` after `ATTEMPTS` tries."""
    what = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        try:
            return get()
        except _WrongBytes as error:
            what = str(error)
    raise Damaged(Problem(key, f"{what} ({ATTEMPTS} tries)", FIX))
