"""The stage: one copy of the weights in host memory, changed in place while the engine serves its own.

- `apply` takes the copy along a path of routes (`apply_path`). Afterwards every tensor has the digest that the signed
  manifest names; otherwise the stage holds nothing, and the next path must begin with an anchor.
- The stage never goes back to an older version than the newest that it has held, whatever is asked of it.
- A reader holds the copy while it reads (`hold`): an apply waits for readers, and `hold` never waits for an apply.
- Beside the copy, nothing larger than a part is in memory.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from echo_queue.records import Version
from echo_queue.weights.apply_path import apply_path
from echo_queue.weights.manifest import Manifest, Part, Route, TensorInfo, root_digest
from echo_queue.weights.reader import refuse_older
from echo_queue.weights.tensors import allocate, digest_of
from workers.weights.transport import FetchedPart

if TYPE_CHECKING:
    from torch import Tensor

HOLD_S = 0.2
"""An apply that waits for readers checks at this interval whether it is still wanted."""


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

        The caller holds the stage. The first route begins at the staged version, or at nothing. Raises what
        `apply_path` raises; the stage then holds nothing. Raises `OlderVersion` before anything is changed.
        """
        refuse_older(manifest.version, self._newest)
        have, self.have = self.have, None
        self.tensors = allocate(manifest, self.tensors)

        def fetched(route: Route) -> Iterator[tuple[Part, memoryview]]:
            return ((part, parts[part.key].memory()) for part in route.parts)

        root = have[1] if have is not None else None
        apply_path(routes, manifest, self.tensors, root=root, parts=fetched, chunk_key=chunk_key)
        self.have, self._newest = (manifest.version, manifest.root), manifest.version

    def adopt(self, manifest: Manifest, weight: "Callable[[str], Tensor]") -> str:
        """Copies the engine's tensors to the stage as the manifest's version; returns the root of the copies.

        `weight` returns the engine's tensor of a name. The caller holds the stage.
        """
        self.tensors = allocate(manifest, self.tensors)
        found = []
        for info in manifest.tensors:
            tensor = self.tensors[info.name]
            tensor.copy_(weight(info.name))
            digest = digest_of(tensor)
            found.append(TensorInfo(info.name, info.dtype, info.shape, digest))
        self.have = (manifest.version, root_digest(found, manifest.aliases))
        return self.have[1]
