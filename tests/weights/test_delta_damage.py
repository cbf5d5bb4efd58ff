"""Promise: whatever bytes come, `apply` makes what was encoded or raises `BadDelta`; no crash, no grab for memory."""

import subprocess
import sys
from contextlib import suppress

import numpy as np
import orjson
import pytest
import torch
from blake3 import blake3
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from echo_queue.weights.delta import BadDelta, Settings, apply, classes, encode, rans, read_header, varints
from echo_queue.weights.delta.change import InClasses
from echo_queue.weights.delta.format import LENGTHS, MAGIC
from echo_queue.weights.delta.streams import MalformedStream, pack
from tests.waiting import DEADLINE_S

torch.set_num_threads(1)
quick = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])


def versions() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors whose pieces are of every kind."""
    random = np.random.default_rng(0)
    base, new = {}, {}
    for name, share, reach in (("a", 0, 1), ("b", 0.005, 1), ("c", 0.2, 20), ("d", 0.8, 300), ("e", 1, 60_000)):
        codes = random.integers(0, 65_536, 6001).astype(np.uint16)
        step = np.where(random.random(6001) < share, random.integers(1, reach, 6001, endpoint=True), 0)
        base[name] = torch.from_numpy(codes.view(np.int16)).view(torch.bfloat16)
        new[name] = torch.from_numpy((codes + step.astype(np.uint16)).view(np.int16)).view(torch.bfloat16)
    return base, new


BASE, NEW = versions()
SHARDS = list(encode(BASE, NEW, settings=Settings(shard_bytes=30_000, classes_below=1)))


def test_the_shards_here_have_pieces_of_every_kind() -> None:
    assert {piece.kind for shard in SHARDS for piece in shard.pieces} == {"same", "gaps", "classes", "dense", "full"}


def survives(data: bytes) -> None:
    """Either it is applied and what came out is what it says, or it is refused."""
    state = {name: tensor.clone() for name, tensor in BASE.items()}
    out = {name: torch.zeros_like(tensor) for name, tensor in BASE.items()}
    for made in (out, state):
        with suppress(BadDelta):
            for piece in apply(data, state if made is state else BASE, made):
                part = codes(made[piece.names[0]])[piece.start : piece.start + piece.count]
                assert blake3(part.numpy().tobytes()).hexdigest() == piece.digest


def is_refused(data: bytes) -> None:
    """Asserts that the delta is refused, and that a state changed in place is as it was or already as it should be."""
    state = {name: tensor.clone() for name, tensor in BASE.items()}
    for made in ({name: torch.zeros_like(tensor) for name, tensor in BASE.items()}, state):
        with pytest.raises(BadDelta):
            apply(data, state if made is state else BASE, made)
    for name, tensor in state.items():
        assert torch.equal(codes(tensor), codes(BASE[name])) or torch.equal(codes(tensor), codes(NEW[name]))


def codes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16)


@pytest.mark.slow
@given(
    st.integers(0, len(SHARDS) - 1),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=4),
)
@example(0, [(len(MAGIC) + LENGTHS.size + 4, 16)])
@quick
def test_flipped_bits_are_refused_or_mean_nothing(number: int, flips: list[tuple[int, int]]) -> None:
    """zstd has some that its decoder ignores."""
    data = bytearray(SHARDS[number].data)
    for place, mask in flips:
        data[place % len(data)] ^= mask
    survives(bytes(data))


@pytest.mark.slow
@given(st.integers(0, len(SHARDS) - 1), st.integers(0, 2**20), st.binary(max_size=40))
@quick
def test_a_shard_cut_short_or_made_longer_is_refused(number: int, length: int, more: bytes) -> None:
    whole = SHARDS[number].data
    cut = whole[: length % len(whole)]
    is_refused(cut)
    for data in (cut + more, whole + more):
        if data != whole:
            is_refused(data)


@given(st.binary(max_size=200))
@example(MAGIC + LENGTHS.pack(0, 0))
@example(MAGIC + LENGTHS.pack(2**32 - 1, 2**32 - 1) + b"x")
@quick
def test_bytes_that_never_were_a_shard_are_refused(data: bytes) -> None:
    for shard in (data, MAGIC + data):
        with pytest.raises(BadDelta):
            apply(shard, BASE, {})


def test_a_shard_of_the_older_format_is_refused_and_told_apart_from_a_damaged_one() -> None:
    with pytest.raises(BadDelta, match=r"format EQD1, but this release reads EQD2\n.*the same release"):
        apply(b"EQD1" + SHARDS[0].data[4:], BASE, {})


def numbers(*listed: int) -> np.ndarray:
    return varints.write(np.array(listed, np.uint32))


@pytest.mark.parametrize(
    "stream",
    [
        *(numbers(*listed) for listed in ((), (3,), (3, 0), (3, 5, 0), (255, 1, 1), (256, 1), (3, 101))),
        np.frombuffer(b"\x03\x85", np.uint8),
        np.frombuffer(b"\x03\x85\x80\x80\x80\x00", np.uint8),
    ],
)
def test_counts_that_are_not_those_of_classes_are_refused(stream: np.ndarray) -> None:
    with pytest.raises(MalformedStream):
        classes.read_counts(stream, 100)


CODED = rans.write(np.array([5, 0, 700], np.uint32), np.array([0, 9, 0], np.uint64))
HALVES = (2, 2048, 2048)
"""A table of two symbols."""
ONE = (1, 4096)


@pytest.mark.parametrize(
    "tables",
    [
        (),
        (3,),
        (3, *ONE),
        (2, *HALVES, *HALVES),
        (3, *HALVES, *HALVES, 1),
        (3, *HALVES, *HALVES, 0, *HALVES, *HALVES),
        (3, 2, 2048, 2047, *HALVES),
        (3, 2, 2048, 2049, *HALVES),
        (3, 0, *HALVES),
        (3, 47, *(0,) * 46, 4096, *ONE),
        (3, *ONE, 33, *(0,) * 32, 4096),
        (3, *ONE, 1 << 20, 4096),
        (1, *ONE, *ONE) * 65,
    ],
)
def test_tables_that_are_not_those_of_the_changes_are_refused(tables: tuple[int, ...]) -> None:
    count = 65 if len(tables) > 300 else 3
    with pytest.raises(MalformedStream, match=r"table|runs"):
        rans.read(CODED._replace(tables=numbers(*tables)), count, 23, 16)


@pytest.mark.parametrize("field", ["gaps", "values", "extra"])
@pytest.mark.parametrize("change", ["cut", "longer", "other"])
def test_words_and_extra_bits_end_with_the_last_change(field: str, change: str) -> None:
    whole: np.ndarray = getattr(CODED, field)
    other = whole ^ np.array([0] * (len(whole) - 1) + [0x80], np.uint8)
    made = {"cut": whole[:-2], "longer": np.append(whole, whole[:2]), "other": other}[change]
    with pytest.raises(MalformedStream):
        rans.read(CODED._replace(**{field: made}), 3, 23, 16)


def test_a_gap_beyond_its_class_is_refused_before_anything_is_changed() -> None:
    codes, counts = np.zeros(100, np.uint16), np.zeros(classes.KEYS, np.uint32)
    counts[0] = 2
    for gaps in ([0, 99], [100, 0], [(1 << 23) - 1, (1 << 23) - 1]):
        changes = classes.Classes(counts, np.array(gaps, np.uint32), np.ones(2, np.uint16))
        with pytest.raises(MalformedStream, match="beyond the end of its class"):
            InClasses(changes).add(codes)
        assert not codes.any()


FIELDS = {
    "names": st.sampled_from([[], ["x"], "x", [3], None, 3]),
    "dtype": st.sampled_from(["BF16", "F16", "F64", "U8", "", 3]),
    "shape": st.lists(st.integers(-1, 2**70), max_size=3) | st.just([6001]) | st.none(),
    "start": st.integers(-1, 2**70) | st.integers(0, 4000) | st.floats(),
    "count": st.integers(-1, 2**70) | st.integers(0, 4000) | st.booleans(),
    "kind": st.sampled_from(["same", "gaps", "classes", "dense", "full", "other", 5, ["full"]]),
    "digest": st.text(max_size=70) | st.none(),
    "bits": st.integers(-1, 9) | st.just(2**64),
    "streams": st.lists(st.tuples(st.integers(-1, 2**40), st.integers(-1, 2**40)), max_size=6) | st.just([3]),
}


@pytest.mark.slow
@given(st.integers(0, len(SHARDS) - 1), st.data())
@quick
def test_a_header_that_lies_is_refused_unless_its_digests_are_true(number: int, data: st.DataObject) -> None:
    """A shard as an attacker who knows the format would write it; only a signed manifest can say whose piece it is."""
    shard = SHARDS[number]
    _, start = read_header(shard.data)
    entries = orjson.loads(orjson.dumps(shard.pieces))
    for _ in range(data.draw(st.integers(1, 2))):
        entry = data.draw(st.sampled_from(entries))
        field = data.draw(st.sampled_from(sorted(FIELDS)))
        value = data.draw(FIELDS[field])
        entry[field] = value if not isinstance(value, int) or value < 2**64 else 2**64 - 1
    try:
        header = pack(orjson.dumps(entries))
    except TypeError:  # not even JSON holds it
        return
    survives(MAGIC + LENGTHS.pack(len(header.data), header.length) + header.data + shard.data[start:])


BOMB = """
import resource, torch
import numpy as np
from dataclasses import replace
from echo_queue.weights.delta import BadDelta, Piece, apply
from echo_queue.weights.delta.format import seal
from echo_queue.weights.delta.streams import MalformedStream, pack
huge = pack(bytes(1 << 28))
bomb = Piece(("w",), "BF16", (100,), 0, 100, "full", "0" * 64, 0, ((len(huge.data), huge.length), (0, 100)))
shards = [seal([bomb], [[huge]])]
shards.append(seal([replace(bomb, streams=((len(huge.data), 200), (0, 100)))], [[huge]]))
shards.append(seal([replace(bomb, shape=(1 << 60,), count=1 << 60)], [[huge]]))
tensors = {"w": torch.zeros(100, dtype=torch.bfloat16)}
apply(seal([Piece(("w",), "BF16", (100,), 0, 100, "same", "0" * 64)], [[]]).data, tensors, tensors, check=False)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
for shard in shards:
    try:
        apply(shard.data, tensors, tensors)
    except BadDelta:
        print("refused")
"""


@pytest.mark.slow
def test_a_stream_that_expands_without_end_is_refused_before_it_does() -> None:
    """The decoder runs in a process that may not grow: 256 MiB of zeros in a few bytes, for 200 bytes of weights."""
    done = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.stdout.split() == ["refused"] * 3, done.stderr
