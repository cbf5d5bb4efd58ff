"""Reads the rows that a process wants from a checkpoint's files, straight into the tensors that are to hold them.

- `plan` decides, from the manifest alone, which files are read and what is copied where. A file of which no row is
  wanted is not read.
- A file counts only if its bytes match their digest. The network may damage a single reading, so a file is damaged only
  after `ATTEMPTS` of them.
- At most `state_files.THREADS` files are in memory at a time, however large the state is.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from blake3 import blake3

from echo_queue.connections.storage.object_store import ObjectStore, ShortObject
from learner.model.pieces import Piece, rows_of
from learner.recovery.state_files import (
    NAMES,
    StateFile,
    StoredRows,
    in_threads,
    view_of,
)

ATTEMPTS = 3


@dataclass(frozen=True)
class Copy:
    """`rows` rows from row `first` of a tensor on: they lie in `source` and go into `target`."""

    source: StoredRows
    target: Piece
    first: int
    rows: int


@dataclass(frozen=True)
class FileRead:
    """A file to read, and what to copy from it."""

    file: StateFile
    copies: tuple[Copy, ...]


def plan(files: Sequence[StateFile], wanted: Iterable[Piece]) -> tuple[FileRead, ...]:
    """Says which files to read for the pieces in `wanted`, whose tensors are the destinations. Pure.

    Rows that several files hold are read once. Raises `ValueError` if a row is in no file, or is of another shape or
    type than its destination.
    """
    stored: dict[str, list[tuple[StoredRows, int]]] = defaultdict(list)
    for number, file in enumerate(files):
        for rows in file.rows:
            stored[rows.name].append((rows, number))
    reads: dict[int, list[Copy]] = defaultdict(list)
    for target in wanted:
        for copy, number in _copies(target, sorted(stored[target.name], key=lambda each: each[0].first)):
            reads[number].append(copy)
    return tuple(FileRead(files[number], tuple(copies)) for number, copies in sorted(reads.items()))


def read_files(store: ObjectStore, prefix: str, reads: Sequence[FileRead]) -> None:
    """Carries out a plan. Raises `MissingObject` for a file that is gone, `ValueError` for one that is damaged."""

    def read(one: FileRead) -> None:
        flat = torch.frombuffer(verified(store, prefix, one.file), dtype=torch.uint8)
        with torch.no_grad():
            for copy in one.copies:
                skipped, source = copy.first - copy.source.first, view_of(flat, copy.source)
                taken = source[skipped : skipped + copy.rows] if copy.source.shape else source
                copy.target.part(copy.first, copy.rows).copy_(taken)

    in_threads(read, reads)


def verify_files(store: ObjectStore, prefix: str, files: Sequence[StateFile]) -> None:
    """Reads every file and keeps none. Raises what `read_files` raises."""

    def verify(file: StateFile) -> None:
        verified(store, prefix, file)

    in_threads(verify, files)


def verified(store: ObjectStore, prefix: str, file: StateFile) -> bytearray:
    """Returns the file's bytes. Raises `MissingObject`, or `ValueError` if they do not match their digest."""
    data = bytearray(file.size)
    for _ in range(ATTEMPTS):
        try:
            store.read_into(prefix + file.name, data)
        except ShortObject:
            continue
        if blake3(data).hexdigest() == file.digest:
            return data
    raise ValueError(f"{file.name} does not match its digest")


def _copies(target: Piece, stored: Sequence[tuple[StoredRows, int]]) -> Iterator[tuple[Copy, int]]:
    """Yields what fills `target` from `stored`, which is sorted by the first row, and the numbers of the files."""
    at, end = target.first, target.first + target.rows
    for rows, number in stored:
        if (rows.shape, rows.dtype) != (target.shape, NAMES[target.tensor.dtype]):
            raise ValueError(f"{target.name} has another shape or type")
        if rows.first <= at < rows.first + rows.rows and at < end:
            upto = min(end, rows.first + rows.rows)
            yield Copy(rows, target, at, upto - at), number
            at = upto
    if at < end or not stored:
        raise ValueError(f"rows of {target.name} from {at} on of {rows_of(target.shape)} are in no file")
