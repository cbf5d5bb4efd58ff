"""The stage: one copy of the weights in host memory, changed in place while the engine serves its own.

- `apply` takes the copy along a path of routes. Afterwards every tensor has the digest that the signed manifest names;
  otherwise the stage holds nothing, and the next path must begin with an anchor.
- The stage never goes back to an older version than the newest that it has held, whatever is asked of it.
- A reader holds the copy while it reads (`hold`): an apply waits for readers, and `hold` never waits for an apply.
- Beside the copy, nothing larger than a part is in memory.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from echo_queue import failpoints
from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Version
from echo_queue.weights import delta, reader
from echo_queue.weights.delta.codes import dtype_name
from echo_queue.weights.manifest import Manifest, Route, TensorInfo, root_digest
from echo_queue.weights.tensor_check import TensorCheck
from echo_queue.weights.tensors import digest_of, empty
from workers.weights.transport import FetchedPart

if TYPE_CHECKING:
    from torch import Tensor

HOLD_S = 0.2
"""An apply that waits for readers checks at this interval whether it is still wanted."""


class BadStage(ServiceError):
    """The staged weights are not those that were published."""


class Stage:
    """The weight watcher's thread applies versions to it; the main thread reads its tensors while it holds it."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        """The tensors by their published names, tied names included."""
        self.have: tuple[Version, str] | None = None
        """The version and root of the weights that are whole here; None if there are none."""
        self._newest: Version | None = None
        """The newest version that was whole here, which stays when it is forgotten."""
        self._turn = threading.Lock()

    @property
    def served(self) -> "Mapping[str, Tensor]":
        """The tensors that an engine is to serve, by its own names. They stay as they are while the stage is held."""
        return self.tensors

    def served_manifest(self, manifest: Manifest) -> Manifest:
        """Returns the manifest that describes `served`, where `manifest` is that of the staged version."""
        return manifest

    def hold(self) -> bool:
        """Keeps the stage as it is until `release`. Returns False, at once, while a version is applied to it."""
        return self._turn.acquire(timeout=0)

    def release(self) -> None:
        self._turn.release()

    def wait_turn(self, wanted: Callable[[], bool]) -> bool:
        """Waits until no thread reads the stage, and holds it for `apply`; returns False once it is not `wanted`."""
        while wanted():
            if self._turn.acquire(timeout=HOLD_S):
                return True
        return False

    def forget(self) -> None:
        """Marks the stage as holding nothing, so that no route can begin at it. The caller holds the stage."""
        self.have = None

    def apply(
        self, routes: Sequence[Route], manifest: Manifest, parts: Mapping[str, FetchedPart], chunk_key: bytes | None
    ) -> None:
        """Turns the stage into the manifest's version along the path `routes`; `parts` maps keys to their parts.

        The caller holds the stage. The first route begins at the staged version, or at nothing. Raises `BadStage`,
        `BadDelta`, or the error of reading a part; the stage then holds nothing. Raises `OlderVersion` before anything
        is changed.
        """
        reader.refuse_older(manifest.version, self._newest)
        have, self.have = self.have, None
        self._allocate(manifest)
        if not routes and (have is None or have[1] != manifest.root):
            self._refuse(manifest, "no route leads to it")
        check = TensorCheck()
        for route in routes:
            if route.base is not None and (have is None or have[1] != route.base_root):
                self._refuse(manifest, f"route {route.name} begins elsewhere")
            check = TensorCheck()
            for part in route.parts:
                shard = reader.plain(part, parts[part.key].memory(), chunk_key)
                check.add(delta.read_header(shard)[0])
                self._apply(route, part.key, shard)
            have = (route.version, route.root)
        if routes and (wrong := check.differing(manifest.tensors)):
            self._refuse(manifest, f"{wrong} is not what was published")
        if have is None or have[1] != manifest.root:
            self._refuse(manifest, "its routes lead elsewhere")
        self.have, self._newest = (manifest.version, manifest.root), manifest.version

    def adopt(self, manifest: Manifest, weight: "Callable[[str], Tensor]") -> str:
        """Copies the engine's tensors to the stage as the manifest's version; returns the root of the copies.

        `weight` returns the engine's tensor of a name. The caller holds the stage.
        """
        self._allocate(manifest)
        found = []
        for info in manifest.tensors:
            tensor = self.tensors[info.name]
            tensor.copy_(weight(info.name))
            digest = digest_of(tensor)
            found.append(TensorInfo(info.name, info.dtype, info.shape, digest))
        self.have = (manifest.version, root_digest(found, manifest.aliases))
        return self.have[1]

    def _apply(self, route: Route, key: str, shard: memoryview) -> None:
        base = {} if route.base is None else self.tensors
        failpoints.step("apply part", lambda: delta.apply(shard, base, self.tensors), key)

    def _allocate(self, manifest: Manifest) -> None:
        """Makes room for all the manifest's tensors. A tensor that fits stays where it is and keeps its values."""
        before, self.tensors = self.tensors, {}
        for info in manifest.tensors:
            here = before.get(info.name)
            self.tensors[info.name] = here if here is not None and _fits(here, info) else empty(info)
        for alias, owner in manifest.aliases.items():
            self.tensors[alias] = self.tensors[owner]

    def _refuse(self, manifest: Manifest, what: str) -> None:
        fix = "it is fetched again from an anchor; if that goes on, publish again"
        raise BadStage(Problem(f"weights {manifest.version}", what, fix))


def _fits(tensor: "Tensor", info: TensorInfo) -> bool:
    return (dtype_name(tensor), tuple(tensor.shape)) == (info.dtype, info.shape)
