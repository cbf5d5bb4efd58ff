"""The commands `weights ls | show | verify | fetch | gc`: list, show, verify, copy and remove published versions.

- They have the worker's rights, `gc` the learner's. The queue names the latest version and the key to trust.
- All but `ls` and `gc` read only data that is signed with that key.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from echo_queue import failpoints, weights
from echo_queue.cli.documents import BaseDocument, ManifestDocument, RouteDocument, RouteEntry, VersionEntry
from echo_queue.cli.output import print_json
from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.connections.secrets import Role
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import EchoQueueError, Problem, ServiceError
from echo_queue.launch.problem_output import print_problems
from echo_queue.queue import Caller, Monitor, RunKeys, TrustedWeights
from echo_queue.queue.counts import counted
from echo_queue.records import Published, Version
from echo_queue.weights.catalogue import Entry, catalogue
from echo_queue.weights.manifest import Manifest, Route, base_of, manifest_key, route_key
from echo_queue.weights.reader import fetch_along, fetch_parts, find_path, open_manifest
from echo_queue.weights.retention import doomed, remove
from echo_queue.weights.signatures import SignatureVerifier, key_id

NAMED = 8
"""So many versions an error names."""


@dataclass(frozen=True)
class StoredWeights:
    """The run's store and queue, as one role connects to them."""

    config: Config
    store: ObjectStore
    queue: TrustedWeights

    @classmethod
    def of(cls, config: Config, role: Role = "worker") -> "StoredWeights":
        """Connects as this role. Raises `ServiceError`."""
        return cls(config, connect_store(config, role), TrustedWeights(Caller.connect(config, role)))

    def keys(self) -> RunKeys:
        """Returns the keys of the run. Raises `ServiceError` if they are missing or are not the configured ones."""
        keys = self.queue.run_keys()
        if keys is None:
            raise ServiceError(Problem("weights", "no learner has published its key yet", "start the learner"))
        expected = self.config.weights.public_key
        if expected and expected != keys.public_key:
            what = f"the run's learner signs with {key_id(keys.public_key)}, not with this key"
            raise ServiceError(Problem("weights.public_key", what, "find out who else writes to this Redis"))
        return keys

    def latest(self) -> Published:
        """Returns the latest version, from Redis or, if Redis has forgotten it, the store. Raises `ServiceError`."""
        found = self.queue.published() or weights.latest(self.store, self._verifier())
        if found is None:
            raise ServiceError(Problem("weights", "no version is published", "wait for the learner's first version"))
        return found

    def choose(self, name: str) -> Manifest:
        """Returns the manifest of the version called `name` ("lineage.number"), or of the latest version."""
        latest = None if name else self.latest()
        version = _version(name) if latest is None else latest.version
        with self.reading(version):
            if latest is not None:
                return weights.read_manifest(self.store, latest, self._verifier())
            return open_manifest(self.store, self.store.get(manifest_key(version)), version, self._verifier())

    @contextmanager
    def reading(self, version: Version) -> Iterator[None]:
        """Raises the error of `require` in place of one that a version makes which is not stored (any more)."""
        try:
            yield
        except ServiceError:
            self.require(version)
            raise

    def require(self, version: Version) -> Entry:
        """Returns what is stored of a version. Raises `ServiceError` if nothing is: it may be pruned meanwhile."""
        entry = catalogue(self.store, version.lineage).get(version)
        if entry is None or not entry.manifest:
            what = f"version {version} is not stored: it was pruned, perhaps just now, or never published"
            published = (one for one, found in catalogue(self.store).items() if found.manifest)
            raise ServiceError(Problem("weights", what, choose_among(published)))
        return entry

    def _verifier(self) -> SignatureVerifier:
        return SignatureVerifier(self.keys().public_key)


def choose_among(versions: Iterable[Version]) -> str:
    """Returns what to do where a version is missing: choose one of these, of which the newest are named."""
    newest = sorted(set(versions), reverse=True)
    if not newest:
        return "wait for the learner's first version"
    more = f" and {len(newest) - NAMED} older ones (`echo-queue weights ls CONFIG`)" if len(newest) > NAMED else ""
    return f"choose one that is: {', '.join(map(str, newest[:NAMED]))}{more}"


def ls(config: Config, *, as_json: bool) -> None:
    """Prints the versions in the store, from a listing alone."""
    stored = StoredWeights.of(config)
    entries, published = catalogue(stored.store), stored.queue.published()
    latest = published.version if published else None
    if as_json:
        print_json([_entry(entry, latest) for entry in entries.values()], list[VersionEntry])
        return
    table = Table("version", "published", "MiB", "routes", box=None, pad_edge=False)
    for version, entry in entries.items():
        state = "latest" if version == latest else "yes" if entry.manifest else "unfinished"
        size = sum(folder.size for folder in entry.routes.values())
        table.add_row(str(version), state, f"{size / 2**20:,.1f}", ", ".join(_routes(entry)))
    console = Console(highlight=False)
    console.print(table if entries else "no version is published")


def _routes(entry: Entry) -> Iterator[str]:
    for name, folder in entry.routes.items():
        base = base_of(name)
        text = f"{'whole' if base is None else f'from {base}'} {folder.size / 2**20:,.1f}"
        yield text if folder.sealed or name == entry.main else f"{text} (unfinished?)"


def _entry(entry: Entry, latest: Version | None) -> VersionEntry:
    routes = {name: RouteEntry(folder.size, name == entry.main) for name, folder in entry.routes.items()}
    return VersionEntry(entry.version, entry.manifest, entry.version == latest, routes)


def show(config: Config, name: str, *, as_json: bool) -> None:
    """Prints one manifest, once its signature is verified."""
    stored = StoredWeights.of(config)
    manifest = stored.choose(name)
    route = manifest.route
    if as_json:
        print_json(_manifest(manifest))
        return
    console = Console(highlight=False)
    base = "stored whole" if route.base is None else f"the difference to {route.base}"
    console.print(f"version {manifest.version} of run {manifest.run}, signed by {key_id(stored.keys().public_key)}")
    console.print(f"root {manifest.root}")
    console.print(
        f"{base}: {counted(len(route.parts), 'part')}, {route.size:,} bytes for {manifest.size:,} bytes of tensors"
    )
    table = Table("tensor", "type", "shape", "digest", box=None, pad_edge=False)
    for info in manifest.tensors:
        table.add_row(info.name, info.dtype, " × ".join(map(str, info.shape)) or "scalar", info.digest[:16])
    for alias, owner in manifest.aliases.items():
        table.add_row(alias, "", "", f"= {owner}")
    console.print(table)


def _manifest(manifest: Manifest) -> ManifestDocument:
    body, route = manifest.body(), manifest.route
    base = BaseDocument(**body["route"]["base"]) if body["route"]["base"] else None
    same = {name: body[name] for name in ("format", "kind", "run", "lineage", "number", "root", "piece_bytes")}
    return ManifestDocument(
        version=manifest.version,
        tensors=manifest.tensors,
        aliases=manifest.aliases,
        route=RouteDocument(base, route.parts),
        **same,
    )


def verify(config: Config, name: str) -> int:
    """Reads every route to a version, and decodes each upon its base, as a worker would, if that is still stored.

    Returns the exit code, 1 if any data is not as signed, or if nothing that is stored makes the version.
    """
    stored = StoredWeights.of(config)
    manifest = stored.choose(name)
    verification, console = Verification(stored, manifest), Console(highlight=False, soft_wrap=True)
    routes = stored.require(manifest.version).routes
    failures = [problem for route in routes for problem in _report(console, route, partial(verification.route, route))]
    failures += _report(console, f"{len(manifest.tensors)} tensors", verification.conclude)
    if failures:
        stored.require(manifest.version)
    print_problems(failures)
    return 1 if failures else 0


def _report(console: Console, what: str, check: Callable[[], str]) -> tuple[Problem, ...]:
    try:
        found = check()
    except EchoQueueError as error:
        console.print(f"[red]✗[/] {what}")
        return error.problems
    console.print(f"[green]✓[/] {what}: {found}")
    return ()


class Verification:
    """Verifies the routes to one version, one at a time, and counts what it reads. Its methods say what they found."""

    def __init__(self, stored: StoredWeights, manifest: Manifest) -> None:
        keys = stored.keys()
        self._store, self._manifest, self._chunk_key = stored.store, manifest, keys.chunk_key
        self._verifier = SignatureVerifier(keys.public_key)
        self._tried = self._decoded = self._read = 0

    def route(self, name: str) -> str:
        """Verifies the route in the folder `name`. Raises `ServiceError`."""
        self._tried += 1
        route = self._route(base_of(name))
        path = self._path(route)
        self._read += sum(one.size for one in path or (route,))
        chunks = sum(len(part.chunks) for part in route.parts)
        size = f"{counted(len(route.parts), 'part')}, {counted(chunks, 'chunk')}, {route.size:,} bytes"
        if path is None:
            for _ in fetch_parts(self._store, route):
                pass
            return f"{size}; not decoded, as version {route.base} is not stored any more"
        fetch_along(self._store, path, self._manifest, self._chunk_key)
        self._decoded += 1
        return f"{size}; makes all tensors{f' from {route.base}' if route.base else ''}"

    def conclude(self) -> str:
        """Raises `Damaged` if no route was decoded because none leads here from an anchor."""
        if not self._decoded:
            find_path(self._store, None, self._manifest, self._verifier)
        return f"{self._decoded} of {counted(self._tried, 'route')} decoded, {self._read:,} bytes read with their bases"

    def _route(self, base: Version | None) -> Route:
        version, route = self._manifest.version, self._manifest.route
        if base == route.base:
            return route
        key = route_key(version, base)
        route = Route.decode(self._verifier.open(self._store.get(key), key), key)
        if (route.version, route.base, route.root) != (version, base, self._manifest.root):
            what = "leads to another version than its name says"
            raise weights.Damaged(Problem(key, what, "find out who else writes to the store"))
        return route

    def _path(self, route: Route) -> tuple[Route, ...] | None:
        """Returns the cheapest path from an anchor that ends with the route; None if its base is gone."""
        if route.base is None:
            return (route,)
        key = manifest_key(route.base)
        try:
            base = open_manifest(self._store, self._store.get(key), route.base, self._verifier)
        except MissingObject:
            return None
        return (*find_path(self._store, None, base, self._verifier), route)


def fetch(config: Config, name: str, to: Path | None, role: Role = "worker") -> Path:
    """Writes a version as one safetensors file, whole or not at all, and returns its path."""
    from safetensors.torch import save_file

    stored = StoredWeights.of(config, role)
    manifest, keys = stored.choose(name), stored.keys()
    path = to or config.run.dir / f"weights-{manifest.version}.safetensors"
    with stored.reading(manifest.version):
        routes = find_path(stored.store, None, manifest, SignatureVerifier(keys.public_key))
        tensors = fetch_along(stored.store, routes, manifest, keys.chunk_key)
    for alias in manifest.aliases:  # the format has no tied tensors
        tensors[alias] = tensors[alias].clone()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.touch()
    rights = temporary.stat().st_mode
    note = {"run": manifest.run, "version": str(manifest.version), "root": manifest.root}
    failpoints.step("write weights", lambda: save_file(tensors, temporary, note), temporary)
    temporary.chmod(rights)  # safetensors writes files that only their owner may read
    failpoints.step("rename weights", lambda: temporary.replace(path), path)
    return path


def gc(config: Config, *, dry_run: bool) -> None:
    """Removes the versions that the learner would remove next, and those that dead learners left unfinished."""
    caller = Caller.connect(config, "learner")
    stored = StoredWeights(config, connect_store(config, "learner"), TrustedWeights(caller))
    status, newest = Monitor(caller).status(), stored.latest().version
    served = {worker.heartbeat.version for worker in status.workers if worker.heartbeat is not None}
    entries = doomed(stored.store, newest, status.rules.s, served)
    keys = [key for entry in entries for key in entry.keys]
    if not dry_run:
        remove(stored.store, keys)
    size = sum(folder.size for entry in entries for folder in entry.routes.values())
    verb = "would be removed" if dry_run else "removed"
    names = ", ".join(str(entry.version) for entry in entries) or "none"
    Console(highlight=False, soft_wrap=True).print(f"versions {verb}: {names} ({size / 2**20:,.1f} MiB)")


def _version(name: str) -> Version:
    lineage, _, number = name.partition(".")
    if not (lineage.isdigit() and number.isdigit()):
        what = f"{name!r} is not a version"
        raise EchoQueueError(Problem("weights", what, "write LINEAGE.NUMBER, as `echo-queue weights ls` does"))
    return Version(int(lineage), int(number))
