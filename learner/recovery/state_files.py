"""The files that hold a checkpoint's tensors: safetensors files of bounded size, named by their BLAKE3 digests.

- `layout` decides which rows of which tensor go into which file. A tensor that fills more than a file is cut by rows of
  its first dimension. A file is at most `FILE_BYTES` large, unless a single row is larger.
- `write_files` takes the pieces that one rank holds and knows nothing of other ranks: each rank writes its own rows,
  and the manifest lists the files of all ranks.
- Each tensor is copied once, straight from its device into a file's buffer, and at most `THREADS` files are in memory
  at a time, however large the state is.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, TypeVar

import orjson
import torch
from blake3 import blake3
from pydantic import Field
from torch import Tensor

from echo_queue.connections.storage.object_store import MULTIPART_BYTES, ObjectStore
from echo_queue.weights.delta import codes
from learner.model.pieces import Piece, row_bytes, rows_of

SUFFIX = ".safetensors"
FILE_BYTES = MULTIPART_BYTES
"""A file is one plain put, so a learner that is killed leaves no parts of an upload behind."""
SMALL_BYTES = 64 << 10
"""A piece of at most so many bytes goes into a file with other small ones."""
THREADS = 4
"""Number of files that are written or read at a time; each takes a buffer of its own size."""
ALIGNMENT = 8
ENTRY_BYTES = 160
"""Upper bound of a tensor's entry in a file's header, without its name."""
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, kind) for name, kind in codes.DTYPES.items()}
"""The names that safetensors gives to types."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class StoredRows:
    """Rows `first … first + rows − 1` of a tensor of shape `shape`, which begin at byte `begin` of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    rows: int
    begin: int

    def __post_init__(self) -> None:
        lie_within = min(self.first, self.rows, self.begin, *self.shape) >= 0
        if self.dtype not in DTYPES or not lie_within or self.first + self.rows > rows_of(self.shape):
            raise ValueError("rows that cannot be")
        if self.begin % DTYPES[self.dtype].itemsize:
            raise ValueError("rows that are not aligned")

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.rows * row_bytes(self.shape, DTYPES[self.dtype])


@dataclass(frozen=True)
class StateFile:
    """A file of a checkpoint: its BLAKE3 digest, by which it is named, its size in bytes, and what it holds."""

    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: int
    rows: tuple[StoredRows, ...]

    def __post_init__(self) -> None:
        if any(stored.begin + stored.size > self.size for stored in self.rows):
            raise ValueError("a file with rows behind its end")

    @property
    def name(self) -> str:
        return self.digest + SUFFIX


@dataclass(frozen=True)
class Slice:
    """The rows of a piece that go into one file: `rows` rows, from row `first` of the whole tensor on."""

    piece: Piece
    first: int
    rows: int

    @property
    def size(self) -> int:
        """Number of bytes in the file, without its entry in the header."""
        return self.rows * row_bytes(self.piece.shape, self.piece.tensor.dtype)

    @property
    def name(self) -> str:
        """The tensor's name in the file; rows of a tensor that was cut say which they are."""
        if self.rows == rows_of(self.piece.shape):
            return self.piece.name
        return f"{self.piece.name}[{self.first}:{self.first + self.rows}]"


def whole(tensors: Mapping[str, Tensor]) -> Iterator[Piece]:
    """Yields tensors that one process holds whole."""
    return (Piece(name, tuple(tensor.shape), 0, tensor.detach()) for name, tensor in tensors.items())


def write_files(
    store: ObjectStore, prefix: str, pieces: Iterable[Piece], file_bytes: int = FILE_BYTES
) -> tuple[StateFile, ...]:
    """Stores the pieces under `prefix`. Memory: `THREADS` × `file_bytes`. Returns when all files are stored.

    Raises the first failure, after the files under way have ended.
    """

    def write(slices: Sequence[Slice]) -> StateFile:
        rows, data = serialise(slices)
        file = StateFile(blake3(data).hexdigest(), len(data), rows)
        store.put(prefix + file.name, data)
        return file

    return tuple(in_threads(write, layout(pieces, file_bytes)))


def layout(pieces: Iterable[Piece], file_bytes: int) -> list[list[Slice]]:
    """Says what each file holds. A piece that fits into one file is not cut. Pure: looks at shapes and types only.

    Small pieces have files of their own, since every rank reads scalars and the random state. A piece without rows of
    a tensor that has some is left out.
    """
    small: list[Piece] = []
    large: list[Piece] = []
    for piece in pieces:
        if piece.rows or not rows_of(piece.shape):
            (small if piece.size <= SMALL_BYTES else large).append(piece)
    return [*_fill(small, file_bytes), *_fill(large, file_bytes)]


def _fill(pieces: Iterable[Piece], file_bytes: int) -> list[list[Slice]]:
    """Fills one file after the other."""
    files: list[list[Slice]] = []
    left = 0
    for piece in pieces:
        entry = len(piece.name) + ENTRY_BYTES
        row = row_bytes(piece.shape, piece.tensor.dtype)
        most = max(1, (file_bytes - entry - ALIGNMENT) // max(1, row))
        for start in range(0, max(1, piece.rows), most):
            cut = Slice(piece, piece.first + start, min(most, piece.rows - start))
            if not files or cut.size + entry > left:
                files.append([])
                left = file_bytes - ALIGNMENT
            files[-1].append(cut)
            left -= cut.size + entry
    return files


def serialise(slices: Sequence[Slice]) -> tuple[tuple[StoredRows, ...], bytearray]:
    """Returns where each slice lies, and the bytes of a safetensors file.

    Larger types come first, so that every tensor is aligned to its type.
    """
    ordered = sorted(slices, key=lambda one: -one.piece.tensor.itemsize)
    begins = [0, *accumulate(one.size for one in ordered)][: len(ordered)]
    header = _header(ordered, begins)
    data = bytearray(len(header) + sum(one.size for one in ordered))
    data[: len(header)] = header
    flat = torch.frombuffer(data, dtype=torch.uint8)
    stored = []
    for one, begin in zip(ordered, begins, strict=True):
        piece = one.piece
        where = StoredRows(piece.name, NAMES[piece.tensor.dtype], piece.shape, one.first, one.rows, len(header) + begin)
        view_of(flat, where).copy_(piece.part(one.first, one.rows))
        stored.append(where)
    return tuple(stored), data


def view_of(flat: Tensor, where: StoredRows) -> Tensor:
    """Returns the stored rows as a view of `flat`, the bytes of their file."""
    taken = flat[where.begin : where.begin + where.size].view(DTYPES[where.dtype])
    return taken.view(where.rows, *where.shape[1:]) if where.shape else taken.view(())


def in_threads(action: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """Returns the results of `action`, in order. After the first failure, which it raises, no other item is begun.

    The threads are daemons, which do not hold up the end of their process.
    """
    waiting = deque(enumerate(items))
    results: dict[int, U] = {}
    failures: list[BaseException] = []

    def work() -> None:
        while waiting and not failures:
            with suppress(IndexError):  # another thread took the last item
                place, item = waiting.popleft()
                try:
                    results[place] = action(item)
                except BaseException as error:
                    failures.append(error)

    threads = [threading.Thread(target=work, name="state files", daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[place] for place in range(len(results))]


def _header(slices: Sequence[Slice], begins: Sequence[int]) -> bytes:
    """Returns the header's length in eight bytes, and the header, padded with spaces."""
    entries = {
        one.name: {
            "dtype": NAMES[one.piece.tensor.dtype],
            "shape": [one.rows, *one.piece.shape[1:]] if one.piece.shape else [],
            "data_offsets": [begin, begin + one.size],
        }
        for one, begin in zip(slices, begins, strict=True)
    }
    if len(entries) != len(slices):
        raise ValueError("the same rows were given twice")
    text = orjson.dumps(entries)
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
