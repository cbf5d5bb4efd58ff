"""One copy of the weights in host memory, changed in place while the engine serves what it has.

- `apply` leads the copy along a path of routes. Afterwards every tensor has the digest that the signed manifest names;
  else the stage holds nothing, and the next path must begin with an anchor.
- Whoever reads the copy holds it meanwhile (`hold`): an apply then waits, and `hold` never waits for an apply.
- Beside the copy nothing larger than a part is held.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from echo_queue import failpoints
from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Version
from echo_queue.weights import delta, reader
from echo_queue.weights.delta.codes import dtype_name
from echo_queue.weights.manifest import Manifest, Part, Route, TensorInfo, root_digest
from echo_queue.weights.tensors import digest_of, empty
from workers.weights.tensor_check import TensorCheck
from workers.weights.transport import FetchedPart

if TYPE_CHECKING:
    from torch import Tensor

HOLD_S = 0.2
"""An apply that waits for its turn looks so often whether it is still wanted."""


class BadStage(ServiceError):
    """What was staged is not what was published."""


class Stage:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        """Named as published, tied names included."""
        self.have: tuple[Version, str] | None = None
        """Version and root of what is whole here."""
        self._turn = threading.Lock()

    def hold(self) -> bool:
        """Keeps the stage as it is until `release`. False, at once, while something is applied to it."""
        return self._turn.acquire(timeout=0)

    def release(self) -> None:
        self._turn.release()

    def wait_turn(self, wanted: Callable[[], bool]) -> bool:
        """Holds the stage for `apply`, once nobody reads it; False if it is not `wanted` any more."""
        while wanted():
            if self._turn.acquire(timeout=HOLD_S):
                return True
        return False

    def forget(self) -> None:
        """Marks the stage as no base for any route. The caller holds the stage."""
        self.have = None

    def apply(
        self, routes: Sequence[Route], manifest: Manifest, parts: Mapping[str, FetchedPart], chunk_key: bytes | None
    ) -> None:
        """Makes the stage the manifest's version, along the path `routes`, whose `parts` are by their key.

        The caller holds the stage. The first route begins at what the stage has, or at nothing. Raises `BadStage`,
        `BadDelta`, or what reading a part raises; the stage then has nothing.
        """
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
                check.add(self._apply(part, parts[part.key], chunk_key))
            have = (route.version, route.root)
        if routes and (wrong := check.differing(manifest.tensors)):
            self._refuse(manifest, f"{wrong} is not what was published")
        if have is None or have[1] != manifest.root:
            self._refuse(manifest, "its routes lead elsewhere")
        self.have = (manifest.version, manifest.root)

    def adopt(self, manifest: Manifest, weight: "Callable[[str], Tensor]") -> str:
        """Takes over what an engine serves as the manifest's version; returns its root. The caller holds the stage."""
        self._allocate(manifest)
        found = []
        for info in manifest.tensors:
            tensor = self.tensors[info.name]
            tensor.copy_(weight(info.name))
            digest = digest_of(tensor)
            found.append(TensorInfo(info.name, info.dtype, info.shape, digest))
        self.have = (manifest.version, root_digest(found, manifest.aliases))
        return self.have[1]

    def _apply(self, part: Part, fetched: FetchedPart, chunk_key: bytes | None) -> tuple[delta.Piece, ...]:
        shard = reader.plain(part, fetched.memory(), chunk_key)
        return failpoints.step("apply part", lambda: delta.apply(shard, self.tensors, self.tensors), part.key)

    def _allocate(self, manifest: Manifest) -> None:
        """Memory for all the manifest's tensors; what fits stays where it is, with what it holds."""
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
