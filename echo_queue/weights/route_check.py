"""Compares the pieces of a route, by the digests in its shards' headers, with the root that is signed for it.

The root names every tensor with its type, shape, digest and further names, so a route needs no other witness: also the
routes in the middle of a path are checked. A route has each element once, which bounds the work for it, however many
shards it has.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from echo_queue.weights.delta import BadDelta, Piece
from echo_queue.weights.manifest import Manifest, Route, TensorInfo, root_digest, tensor_digest


class RouteCheck:
    """Collects the pieces of a route on a path to `target`, in any order."""

    def __init__(self, route: Route, target: Manifest) -> None:
        self._route, self._target = route, target
        self._pieces: dict[str, list[Piece]] = {}
        self._elements: Counter[str] = Counter()

    def add(self, pieces: Iterable[Piece]) -> None:
        """Adds a shard's pieces, before they are made. Raises `BadDelta` if the route has some of them twice."""
        for piece in pieces:
            name = piece.names[0]
            self._elements[name] += piece.count
            if self._elements[name] > piece.elements:
                raise BadDelta(f"delta of {name}", "its route has more elements than the tensor has")
            self._pieces.setdefault(name, []).append(piece)

    def finish(self) -> None:
        """Raises `BadDelta` unless all pieces together are the weights that the route's root names."""
        pieces = [sorted(self._pieces[name], key=lambda piece: piece.start) for name in sorted(self._pieces)]
        tensors = [_tensor(one) for one in pieces]
        aliases = {alias: one[0].names[0] for one in pieces for alias in one[0].names[1:]}
        if root_digest(tensors, aliases) != self._route.root:
            raise BadDelta(f"route {self._route.name}", f"{self._wrong(tensors)} not what was published")

    def _wrong(self, tensors: Sequence[TensorInfo]) -> str:
        wrong = (info.name for info in self._target.tensors if info not in tensors)
        last = self._route.root == self._target.root
        return f"tensor {name} is" if last and (name := next(wrong, None)) else "what its parts make is"


def _tensor(pieces: Sequence[Piece]) -> TensorInfo:
    """Returns the tensor that the pieces, ascending by position, make. Raises `BadDelta` if they are not all of it."""
    first = pieces[0]
    name = first.names[0]
    ends = [piece.start + piece.count for piece in pieces]
    if [0, *ends] != [*(piece.start for piece in pieces), first.elements]:
        raise BadDelta(f"delta of {name}", "its route has fewer elements than the tensor has")
    if any((one.names, one.dtype, one.shape) != (first.names, first.dtype, first.shape) for one in pieces):
        raise BadDelta(f"delta of {name}", "its pieces do not agree on its type, shape and further names")
    return TensorInfo(name, first.dtype, first.shape, tensor_digest(piece.digest for piece in pieces))
