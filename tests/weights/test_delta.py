"""Promises of the delta codec: what is applied is what was encoded, bit for bit, and it is small."""

import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from echo_queue.weights.delta import BadDelta, Piece, Settings, apply, classes, encode, rans
from echo_queue.weights.delta.codes import DTYPES, SIGNED, flat, on_host
from echo_queue.weights.delta.pairs import DevicePair, HostPair

torch.set_num_threads(1)
quick = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
SMALL = Settings(piece_bytes=256, shard_bytes=1024)


def empty_like(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Memory for a version, filled with what it must not contain."""
    return {name: filled(tensor.shape, tensor.dtype, 0xA5) for name, tensor in tensors.items()}


def filled(shape: torch.Size | tuple[int, ...], dtype: torch.dtype, byte: int) -> Tensor:
    size = torch.empty(shape, dtype=dtype, device="meta").nbytes
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray([byte]) * size, dtype=dtype).view(shape)


def sent(base: Mapping[str, Tensor], new: Mapping[str, Tensor], how: Settings = SMALL) -> dict[str, Tensor]:
    """Returns what a reader that has `base` makes of the delta to `new`."""
    out = empty_like(new)
    for shard in encode(base, new, settings=how):
        apply(shard.data, base, out)
    return out


def bits(tensor: Tensor) -> bytes:
    return on_host(flat(tensor)).tobytes()


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    def facts(tensors: Mapping[str, Tensor]) -> dict[str, object]:
        return {name: (tensor.dtype, tensor.shape, bits(tensor)) for name, tensor in tensors.items()}

    return facts(one) == facts(other)


def kinds(base: Mapping[str, Tensor], new: Mapping[str, Tensor], how: Settings | None = None) -> list[str]:
    return [piece.kind for shard in encode(base, new, settings=how) for piece in shard.pieces]


def pieces(base: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> list[Piece]:
    return [piece for shard in encode(base, new, settings=SMALL) for piece in shard.pieces]


def of_codes(codes: np.ndarray, dtype: str, shape: tuple[int, ...] | None = None) -> Tensor:
    row = torch.from_numpy(codes.copy()).view(getattr(torch, DTYPES[dtype]))
    return row.view(shape) if shape is not None else row


FLOATS = ("BF16", "F16", "F32")
EDGES = {  # ±0, smallest subnormals, ±1, ±infinity, quiet and signalling NaNs with payloads
    "BF16": [0, 0x8000, 1, 0x8001, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF],
    "F16": [0, 0x8000, 1, 0x8001, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF],
    "F32": [0, 0x80000000, 1, 0x80000001, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001],
}


@st.composite
def versions(draw: st.DrawFn) -> list[dict[str, Tensor]]:
    """Some versions of a few tensors: what changes, and how much, differs from tensor to tensor and step to step."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = draw(st.integers(2, 5))
    made: list[dict[str, Tensor]] = [{} for _ in range(steps)]
    for number in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        shape = draw(st.sampled_from([(), (0, 3), (1,), (7,), (64,), (5, 13), (2, 3, 100), (1000,), (2400,)]))
        width = torch.empty(0, dtype=getattr(torch, DTYPES[dtype])).element_size()
        size = int(np.prod(shape, dtype=int))
        codes = random.integers(0, 2 if dtype == "BOOL" else 256, size * width, dtype=np.uint8).view(f"u{width}")
        if dtype in EDGES:
            codes = np.where(random.random(size) < 0.2, random.choice(EDGES[dtype], size), codes).astype(codes.dtype)
        for step in range(steps):
            share = draw(st.sampled_from([0, 0.005, 0.05, 0.2, 1]))
            reach = 1 if dtype == "BOOL" else draw(st.sampled_from([1, 20, 2 ** (8 * width - 1) - 1]))
            change = random.integers(-reach, reach, size, endpoint=True).astype(codes.dtype)
            codes = codes + np.where(random.random(size) < share, change, 0).astype(codes.dtype)
            if dtype == "BOOL":
                codes &= 1
            made[step][f"t{number}"] = of_codes(codes, dtype, shape)
    return made


@pytest.mark.slow
@given(versions(), st.sampled_from([256, 1 << 16]), st.sampled_from([0.0, 0.012, 1.0]))
@quick
def test_a_delta_gives_every_bit_of_every_type(
    made: list[dict[str, Tensor]], piece_bytes: int, classes_below: float
) -> None:
    how = Settings(piece_bytes=piece_bytes, shard_bytes=4 * piece_bytes, classes_below=classes_below)
    assert same(sent(made[0], made[1], how), made[1])


@pytest.mark.slow
@given(versions(), st.data())
@quick
def test_any_chain_of_deltas_skips_and_anchors_leads_to_the_same_bits(
    made: list[dict[str, Tensor]], data: st.DataObject
) -> None:
    at, state = 0, sent({}, made[0])
    while at < len(made) - 1:
        to = data.draw(st.integers(at + 1, len(made) - 1))
        match data.draw(st.sampled_from(["delta", "anchor", "in place"])):
            case "anchor":
                state = sent({}, made[to])
            case "delta":
                assert same(state, made[at])
                new = empty_like(made[to])
                for shard in encode(made[at], made[to], settings=SMALL):
                    apply(shard.data, state, new)
                state = new
            case "in place":
                for shard in encode(made[at], made[to], settings=SMALL):
                    apply(shard.data, state, state)
        at = to
    assert same(state, made[-1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_edge_of_floating_point_turns_into_every_other(dtype: str) -> None:
    edges = np.array(EDGES[dtype], "u2" if dtype != "F32" else "u4")
    base, new = (of_codes(part.reshape(-1), dtype) for part in np.meshgrid(edges, edges))
    for classes_below in (0, 1):
        how = Settings(classes_below=classes_below)
        assert same(sent({"edges": base}, {"edges": new}, how), {"edges": new})


def test_an_unchanged_tensor_costs_no_stream() -> None:
    tensor = torch.randn(1000)
    assert kinds({"w": tensor}, {"w": tensor.clone()}) == ["same"]
    assert pieces({"w": torch.empty(0, 5)}, {"w": torch.empty(0, 5)})[0].stored == 0


def test_each_piece_takes_the_kind_that_is_smallest_for_it() -> None:
    generator = np.random.default_rng(0)
    codes = generator.normal(0, 0.02, 100_000).astype(np.float32).view(np.uint32) >> 16
    base = codes.astype(np.uint16)

    def changed(share: float, reach: int) -> Tensor:
        step = np.where(generator.random(len(base)) < share, generator.integers(1, reach, len(base), endpoint=True), 0)
        return of_codes(base + step.astype(np.uint16), "BF16")

    old = {"w": of_codes(base, "BF16")}
    one = base.copy()
    one[7] += 1
    assert kinds(old, {"w": of_codes(one, "BF16")}) == ["gaps"]
    assert kinds(old, {"w": changed(0.04, 1)}) == ["classes"]
    assert kinds(old, {"w": changed(0.06, 1)}) == ["gaps"]
    assert kinds(old, {"w": changed(0.06, 1)}, Settings(classes_below=1)) == ["classes"]
    assert kinds(old, {"w": changed(0.9, 3)}) == ["dense"]
    assert kinds(old, {"w": changed(1, 60_000)}) == ["full"]
    assert kinds({}, old) == ["full"]


@pytest.mark.parametrize("new", [torch.zeros(4, 2), torch.zeros(8), torch.zeros(2, 4, dtype=torch.bfloat16)])
def test_another_shape_or_type_is_sent_in_full(new: Tensor) -> None:
    base = {"w": torch.zeros(2, 4)}
    assert kinds(base, {"w": new}) == ["full"]
    out = {"w": torch.ones_like(new)}
    for shard in encode(base, {"w": new}):
        apply(shard.data, base, out)
    assert same(out, {"w": new})


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_tied_tensors_travel_once_and_both_names_get_them(shared: bool, in_place: bool) -> None:
    old, new = torch.randn(50, 8), torch.randn(50, 8)
    base = {"embedding": old.clone()}
    base["head"] = base["embedding"] if shared else old.clone()
    out = base if in_place else {name: torch.zeros(50, 8) for name in base}
    if shared and not in_place:
        out["head"] = out["embedding"]
    shards = list(encode({"embedding": old}, {"embedding": new}, aliases={"head": "embedding"}, settings=SMALL))
    assert {piece.names for shard in shards for piece in shard.pieces} == {("embedding", "head")}
    for shard in shards:
        apply(shard.data, base, out)
    assert same(out, {"embedding": new, "head": new})


def test_shards_can_be_applied_in_any_order() -> None:
    base = {f"w{number}": torch.randn(500) for number in range(5)}
    new = {name: tensor + (torch.rand(500) < 0.1) for name, tensor in base.items()}
    shards = list(encode(base, new, settings=SMALL))
    assert len(shards) > 5
    out = empty_like(new)
    for shard in reversed(shards):
        apply(shard.data, base, out)
    assert same(out, new)


@pytest.mark.parametrize("seed", range(4))
def test_views_that_are_not_contiguous_are_encoded(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    base, new = torch.randn(30, 20, generator=draw).t(), torch.randn(20, 60, generator=draw)[:, ::2]
    out = {"w": torch.empty(20, 30)}
    for shard in encode({"w": base}, {"w": new}, settings=SMALL):
        apply(shard.data, {"w": base.contiguous()}, out)
    assert same(out, {"w": new.contiguous()})


def test_a_device_finds_the_same_changes_as_the_processor() -> None:
    """The path of GPUs, run on the CPU's torch."""
    random = np.random.default_rng(1)
    for width in SIGNED:
        base = random.integers(0, 256, 1003 * width, dtype=np.uint8).view(f"u{width}")
        new = base + np.where(random.random(1003) < 0.1, 3, 0).astype(base.dtype)
        rows = [torch.from_numpy(codes.copy()).view(getattr(torch, SIGNED[width])) for codes in (base, new)]
        host, device = HostPair(base, new), DevicePair(*rows)
        for one, other in zip(host.changes(1003) or (), device.changes(1003) or (), strict=True):
            assert np.array_equal(one, other)
        assert host.changes(10) is None is device.changes(10)
        assert np.array_equal(host.differences(), device.differences())
        changes = host.changes(1003)
        assert changes is not None
        for one, other in zip(host.classes(*changes), device.classes(*changes), strict=True):
            assert np.array_equal(one, other) and one.dtype == other.dtype


def model_step(lr: float, size: int = 1 << 20) -> tuple[Tensor, Tensor]:
    """Weights of σ 0.02 and an update of that size, as bfloat16 of float32 masters."""
    generator = torch.Generator().manual_seed(0)
    master = torch.randn(size, generator=generator) * 0.02
    return master.bfloat16(), (master + torch.randn(size, generator=generator) * lr).bfloat16()


def order_0(values: np.ndarray) -> float:
    """Bytes that the best code of single values needs."""
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(shares * np.log2(shares)).sum() * len(values) / 8)


def given_exponent(base: np.ndarray, new: np.ndarray) -> float:
    """Bytes that the best code of the differences needs, if it knows each bfloat16's exponent."""
    exponents = (base >> 7) & 255
    return sum(order_0((new - base)[exponents == one]) for one in np.unique(exponents))


@pytest.mark.parametrize("lr", [2.4e-7, 5.3e-7, 1.64e-6, 1e-5])  # 1, 2, 5 and 20 % changed
def test_a_sparse_update_takes_little_more_than_the_entropy_of_the_differences_given_the_exponent(lr: float) -> None:
    base, new = model_step(lr)
    size = sum(len(shard.data) for shard in encode({"w": base}, {"w": new}, settings=Settings(classes_below=1)))
    assert size <= 1.1 * given_exponent(on_host(flat(base)), on_host(flat(new)))


@pytest.mark.slow
@given(st.integers(1, 10_000), st.integers(0, 22), st.integers(0, 63), st.integers(0, 2**32 - 1))
@quick
def test_gaps_and_values_come_back_as_they_were_coded(count: int, gap_bits: int, value_bits: int, seed: int) -> None:
    """Most are small, as in an update, but any may be as large as its type allows."""
    random = np.random.default_rng(seed)
    gaps = random.integers(0, 1 << gap_bits, count, dtype=np.uint32) >> random.integers(0, 23, count, dtype=np.uint32)
    values = random.integers(0, 2 << value_bits, count, dtype=np.uint64)
    values >>= random.integers(0, 64, count, dtype=np.uint64)
    made = rans.read(rans.write(gaps, values), count, 23, 64)
    assert np.array_equal(made[0], gaps) and np.array_equal(made[1], values)


@pytest.mark.slow
def test_positions_come_back_from_their_classes() -> None:
    random = np.random.default_rng(0)
    for width in SIGNED:
        base = random.normal(0, 1e3, 5001).astype(f"i{width}").view(f"u{width}")
        places = np.flatnonzero(random.random(5001) < 0.2).astype(np.uint32)
        changes = classes.sort(places, places.astype(base.dtype), base)
        found = classes.positions(changes, base)
        assert np.array_equal(np.sort(found), places)
        assert np.array_equal(found.astype(base.dtype), changes.differences)


@pytest.mark.parametrize("lr", [1e-5, 1e-4, 3e-4])  # 30 to 90 % changed
def test_an_update_of_most_elements_takes_little_more_than_the_entropy_of_the_differences(lr: float) -> None:
    base, new = model_step(lr)
    size = sum(len(shard.data) for shard in encode({"w": base}, {"w": new}))
    assert size <= 1.1 * order_0(on_host(flat(new)) - on_host(flat(base)))


@pytest.mark.slow
def test_memory_stays_within_pieces_and_a_shard_however_large_a_tensor_is() -> None:
    base, new = model_step(1e-4, 1 << 24)
    out = {"w": torch.zeros_like(base)}
    how = Settings(piece_bytes=1 << 20, shard_bytes=2 << 20)
    tracemalloc.start()
    for shard in encode({"w": base}, {"w": new}, settings=how):
        apply(shard.data, {"w": base}, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert same(out, {"w": new})
    assert peak < 16 << 20 < base.nbytes


def test_a_delta_for_another_base_is_refused_and_in_place_leaves_what_was_there() -> None:
    base, new = model_step(1.6e-6, 10_000)
    (shard,) = encode({"w": base}, {"w": new})
    other = {"w": base * 2}
    before = bits(other["w"])
    for out in ({"w": torch.zeros_like(base)}, other):
        with pytest.raises(BadDelta, match=r"beyond the end of its class|the result is not what was encoded"):
            apply(shard.data, other, out)
    assert bits(other["w"]) == before


@pytest.mark.parametrize("lr", [2e-7, 1.6e-6, 1e-4])
def test_in_place_a_delta_is_applied_once_as_in_a_copy(lr: float) -> None:
    base, new = model_step(lr, 10_000)
    (shard,) = encode({"w": base}, {"w": new})
    state = {"w": base.clone()}
    apply(shard.data, state, state)
    for out in (state, {"w": torch.zeros_like(base)}):
        with pytest.raises(BadDelta):
            apply(shard.data, state, out)
    assert same(state, {"w": new})
