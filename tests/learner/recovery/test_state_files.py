"""A checkpoint's files: any state comes back bit for bit, in files of bounded size, whichever process wrote a row."""

import random
import threading
from collections.abc import Iterator

import pytest
import safetensors.torch
import torch

from echo_queue import failpoints
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from learner.model.pieces import Piece
from learner.recovery.state_files import (
    DTYPES,
    SUFFIX,
    THREADS,
    StateFile,
    in_threads,
    layout,
    serialise,
    whole,
    write_files,
)
from learner.recovery.state_reader import ATTEMPTS, plan, read_files, verify_files

PREFIX = "checkpoints/0001/00000001/"
SMALL = 4096


def every_type() -> dict[str, torch.Tensor]:
    """Odd lengths, so that a type that lies behind another is aligned only if somebody sees to it."""
    draw = torch.Generator().manual_seed(1)
    raw = {
        name: torch.randint(0, 2, (7 * dtype.itemsize,), generator=draw, dtype=torch.uint8)
        for name, dtype in DTYPES.items()
    }
    return {name: raw[name].view(dtype) for name, dtype in DTYPES.items()}


def state() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    return every_type() | {
        "table": torch.randn(300, 33, generator=draw),
        "transposed": torch.randn(20, 30, generator=draw).t(),
        "step": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "vector": torch.randn(5000, generator=draw),
    }


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def test_a_state_comes_back_bit_for_bit(store: ObjectStore) -> None:
    files = write_files(store, PREFIX, whole(state()), SMALL)
    found = {name: torch.empty_like(tensor) for name, tensor in state().items()}
    read_files(store, PREFIX, plan(files, whole(found)))
    assert {name: (tensor.dtype, tensor.shape, bits(tensor)) for name, tensor in found.items()} == {
        name: (tensor.dtype, tensor.shape, bits(tensor)) for name, tensor in state().items()
    }


def test_files_are_bounded_and_named_by_their_digests(store: ObjectStore) -> None:
    files = write_files(store, PREFIX, whole(state()), SMALL)
    assert len(files) > 10 and max(file.size for file in files) <= SMALL
    listed = {stored.key: stored.size for stored in store.list(PREFIX)}
    assert listed == {PREFIX + file.digest + SUFFIX: file.size for file in files}


def test_a_tensor_that_fits_into_a_file_is_not_cut() -> None:
    pieces = [Piece(f"t{number}", (30, 9), 0, torch.zeros(30, 9)) for number in range(9)]
    files = layout(pieces, SMALL)
    assert [[one.rows for one in file] for file in files] == [[30, 30, 30]] * 3


def test_a_row_larger_than_a_file_has_a_file_of_its_own() -> None:
    files = layout([Piece("wide", (3, 9000), 0, torch.zeros(3, 9000))], SMALL)
    assert [[(one.first, one.rows) for one in file] for file in files] == [[(0, 1)], [(1, 1)], [(2, 1)]]


def test_other_programs_read_the_files_as_safetensors() -> None:
    tensors = state()
    for slices in layout(whole(tensors), SMALL):
        read = safetensors.torch.load(bytes(serialise(slices)[1]))
        for one in slices:
            assert bits(read[one.name]) == bits(one.piece.part(one.first, one.rows))


def test_the_same_rows_given_twice_are_refused() -> None:
    piece = Piece("w", (2,), 0, torch.zeros(2))
    with pytest.raises(ValueError, match="twice"):
        serialise([*layout([piece], SMALL)[0], *layout([piece], SMALL)[0]])


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_some_ranks_wrote_are_read_by_others(store: ObjectStore, seed: int) -> None:
    draw = random.Random(seed)
    tensors = {
        "a": torch.randn(draw.randint(1, 200), 7),
        "b": torch.randn(draw.randint(1, 3), 2, 2),
        "c": torch.tensor(1.0),
    }
    files = [file for rank in shards(tensors, draw) for file in write_files(store, PREFIX, rank, 600)]
    draw.shuffle(files)
    for rank in shards(tensors, draw):
        wanted = [Piece(one.name, one.shape, one.first, torch.zeros_like(one.tensor)) for one in rank]
        read_files(store, PREFIX, plan(files, wanted))
        for got, piece in zip(wanted, rank, strict=True):
            assert torch.equal(got.tensor, piece.tensor)


def shards(tensors: dict[str, torch.Tensor], draw: random.Random) -> Iterator[list[Piece]]:
    """Ranks' pieces: each tensor is cut at random rows, and a scalar is everywhere."""
    ranks = draw.randint(1, 4)
    ends = {
        name: [0, *sorted(draw.randint(0, tensor.shape[0]) for _ in range(ranks - 1)), tensor.shape[0]]
        for name, tensor in tensors.items()
        if tensor.ndim
    }
    for rank in range(ranks):
        yield [
            Piece(name, tuple(tensor.shape), ends[name][rank], tensor[ends[name][rank] : ends[name][rank + 1]])
            if tensor.ndim
            else Piece(name, (), 0, tensor)
            for name, tensor in tensors.items()
        ]


def test_only_files_that_hold_wanted_rows_are_read() -> None:
    pieces = [Piece("table", (100, 8), 0, torch.zeros(100, 8)), Piece("other", (9,), 0, torch.zeros(9))]
    made = [serialise(slices) for slices in layout(pieces, 600)]
    files = [StateFile(f"{number}", len(data), rows) for number, (rows, data) in enumerate(made)]
    wanted = Piece("table", (100, 8), 20, torch.zeros(15, 8, device="meta"))
    holding = [
        file
        for file in files
        for rows in file.rows
        if rows.name == "table" and rows.first < 35 and rows.first + rows.rows > 20
    ]
    assert 1 < len(holding) < len(files) - 1
    reads = plan(files, [wanted])
    assert [read.file for read in reads] == holding
    assert sum(copy.rows for read in reads for copy in read.copies) == 15


@pytest.mark.parametrize(
    "wanted",
    [
        Piece("w", (5, 2), 0, torch.zeros(5, 2)),
        Piece("w", (4, 2), 0, torch.zeros(4, 2, dtype=torch.float64)),
        Piece("absent", (4, 2), 0, torch.zeros(4, 2)),
    ],
    ids=["another shape", "another type", "another name"],
)
def test_what_no_file_holds_is_refused_before_anything_is_read(wanted: Piece) -> None:
    rows, data = serialise(layout([Piece("w", (4, 2), 0, torch.zeros(4, 2))], SMALL)[0])
    with pytest.raises(ValueError, match=wanted.name):
        plan([StateFile("digest", len(data), rows)], [wanted])


def test_a_rank_whose_files_are_missing_leaves_a_gap_that_is_noticed() -> None:
    rows, data = serialise(layout([Piece("w", (4, 2), 2, torch.zeros(2, 2))], SMALL)[0])
    with pytest.raises(ValueError, match="rows of w from 0 on"):
        plan([StateFile("digest", len(data), rows)], [Piece("w", (4, 2), 0, torch.zeros(4, 2))])


class Spoiling:
    """Damages the first `times` readings of each object, as a bad network would."""

    def __init__(self, store: ObjectStore, times: int) -> None:
        self._store, self._times = store, times
        self._read: dict[str, int] = {}

    def read_into(self, key: str, buffer: bytearray) -> None:
        self._store.read_into(key, buffer)
        self._read[key] = self._read.get(key, 0) + 1
        if self._read[key] <= self._times:
            buffer[-1] ^= 1


@pytest.mark.parametrize(("times", "whole_again"), [(ATTEMPTS - 1, True), (ATTEMPTS, False)])
def test_a_reading_that_was_damaged_on_its_way_is_repeated(store: ObjectStore, times: int, whole_again: bool) -> None:
    files = write_files(store, PREFIX, whole(state()), SMALL)
    spoiling: ObjectStore = Spoiling(store, times)  # type: ignore[assignment]
    if whole_again:
        verify_files(spoiling, PREFIX, files)
        return
    with pytest.raises(ValueError, match="digest"):
        verify_files(spoiling, PREFIX, files)


@pytest.mark.parametrize("harm", ["shorter", "gone"])
def test_a_file_that_is_not_whole_is_no_checkpoint(store: ObjectStore, harm: str) -> None:
    files = write_files(store, PREFIX, whole(state()), SMALL)
    key = PREFIX + files[3].name
    if harm == "gone":
        store.delete([key])
    else:
        store.put(key, store.get(key)[:-1])
    with pytest.raises(MissingObject if harm == "gone" else ValueError):
        verify_files(store, PREFIX, files)


class Together:
    """Counts how many steps are under way at once; the `failing`-th of them fails."""

    def __init__(self, failing: int = 0) -> None:
        self.most = self.begun = self._now = 0
        self._failing, self._lock = failing, threading.Lock()

    def before(self, step: str, about: object) -> None:
        with self._lock:
            self.begun += 1
            self._now += 1
            self.most = max(self.most, self._now)
            if self.begun == self._failing:
                raise OSError("the disk of the test is full")

    def after(self, step: str, about: object, answer: object) -> None:
        with self._lock:
            self._now -= 1


def test_no_more_files_are_under_way_than_stated(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "observer", seen := Together())
    files = write_files(store, PREFIX, whole(state()), SMALL)
    assert seen.begun == len(files) > 3 * THREADS
    assert 1 < seen.most <= THREADS


def test_the_first_upload_that_fails_ends_the_others(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "observer", seen := Together(failing=2))
    with pytest.raises(OSError, match="the disk of the test"):
        write_files(store, PREFIX, whole(state()), 600)
    assert seen.begun < 100
    begun = seen.begun
    assert in_threads(lambda one: one, [1, 2]) == [1, 2] and seen.begun == begun, "nothing goes on behind the caller"
