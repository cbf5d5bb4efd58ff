"""Applies a path of routes to tensors in memory: the one place that decides what a reader of weights takes.

- A route is taken if it begins at the weights that are here, has every element of every tensor once, and makes exactly
  the weights that its signed root names; an anchor needs nothing that is here. That holds for each route of a path, for
  workers, `weights fetch` and `weights verify`.
- Whatever is refused leaves tensors of no version behind: their holder begins again with an anchor.
- Beside the tensors, nothing larger than a part is in memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from echo_queue import failpoints
from echo_queue.errors import Problem
from echo_queue.weights import delta
from echo_queue.weights.ciphers import plain
from echo_queue.weights.manifest import Damaged, Manifest, Part, Route
from echo_queue.weights.route_check import RouteCheck

if TYPE_CHECKING:
    from torch import Tensor

Parts = Callable[[Route], Iterable[tuple[Part, memoryview]]]
"""Yields a route's parts, with their verified bytes as they are stored."""


def apply_path(
    routes: Sequence[Route],
    target: Manifest,
    tensors: "Mapping[str, Tensor]",
    *,
    root: str | None,
    parts: Parts,
    chunk_key: bytes | None,
) -> None:
    """Turns `tensors`, which are allocated as `target` says, into those of `target`, in place.

    `root`: that of the weights that they hold now; None: they hold none. Raises `Damaged`, `BadDelta`, or the error of
    reading a part.
    """
    _check_ends(routes, target, root)
    for route in routes:
        _apply(route, target, tensors, parts(route), chunk_key)


def _check_ends(routes: Sequence[Route], target: Manifest, root: str | None) -> None:
    """Raises `Damaged` unless each route begins where the one before it ends, and the last one ends at `target`."""
    for route in routes:
        if route.base is not None and (root is None or route.base_root != root):
            raise _refused(target, f"route {route.name} begins elsewhere")
        root = route.root
    if root != target.root:
        raise _refused(target, "its routes lead elsewhere" if routes else "no route leads to it")


def _apply(
    route: Route,
    target: Manifest,
    tensors: "Mapping[str, Tensor]",
    parts: Iterable[tuple[Part, memoryview]],
    chunk_key: bytes | None,
) -> None:
    check, base = RouteCheck(route, target), {} if route.base is None else tensors
    for part, stored in parts:
        shard = plain(part, stored, chunk_key)
        check.add(delta.read_header(shard)[0])
        failpoints.step("apply part", lambda shard=shard: delta.apply(shard, base, tensors), part.key)  # type: ignore[misc]
    check.finish()


def _refused(target: Manifest, what: str) -> Damaged:
    fix = "fetch it again from an anchor; if that goes on, publish again"
    return Damaged(Problem(f"weights {target.version}", what, fix))
