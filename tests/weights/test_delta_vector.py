"""Promise: docs/weights.md is complete: what reads shards here was written from it and shares no code with ours."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard
from blake3 import blake3
from safetensors.torch import load_file

from echo_queue.weights.delta import BadDelta, apply, read_header
from echo_queue.weights.delta.codes import flat, on_host
from tests.weights.vector import departures

VECTOR = Path(__file__).parent / "vector"
DELTA, ANCHOR = (sorted(VECTOR.glob(f"{route}-*.shard")) for route in ("delta", "anchor"))
WIDTHS = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


def safetensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Type, shape and bytes by name."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    return {
        name: (
            entry["dtype"],
            entry["shape"],
            data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


BASE, NEW = (safetensors(VECTOR / f"{name}.safetensors") for name in ("base", "new"))


def stream(data: bytes, length: int) -> bytes:
    return data if len(data) == length else zstandard.decompress(data)


def planes(streams: list[bytes]) -> list[int]:
    return [int.from_bytes(parts, "little") for parts in zip(*streams, strict=True)]


def symbols(bits: int, streams: list[bytes], count: int) -> list[int]:
    packed = streams[0]
    found = list(packed) if bits == 8 else [half for byte in packed for half in (byte & 15, byte >> 4)]
    escaped = iter(planes(streams[1:]))
    values = [next(escaped) if symbol == 2**bits - 1 else symbol for symbol in found[:count]]
    assert next(escaped, None) is None
    return values


def positions(gaps: bytes) -> list[int]:
    found, place = [], 0
    for gap in gaps:
        place += gap
        if gap < 255:
            found.append(place)
            place += 1
    return found


def varints(stream: bytes) -> list[int]:
    found, number, digits = [], 0, 0
    for byte in stream:
        number += (byte & 127) << 7 * digits
        digits += 1
        if byte < 128:
            found.append(number)
            number = digits = 0
    return found


def runs(stream: bytes) -> list[tuple[list[int], list[int]]]:
    """The tables of gaps and values, for each change."""
    numbers, found = iter(varints(stream)), []
    for length in numbers:
        gaps, values = ([next(numbers) for _ in range(next(numbers))] for _ in range(2))
        found += [(gaps, values)] * length
    return found


def coded(stream: bytes, tables: list[list[int]]) -> list[int]:
    words = iter([int.from_bytes(stream[at : at + 2], "little") for at in range(0, len(stream), 2)])
    x, found = next(words) + 65_536 * next(words), []
    for table in tables:
        r, symbol = x % 4096, 0
        while r >= table[symbol]:
            r -= table[symbol]
            symbol += 1
        x = table[symbol] * (x // 4096) + r
        if x < 65_536:
            x = x * 65_536 + next(words)
        found.append(symbol)
    assert (x, next(words, None)) == (65_536, None)
    return found


def numbers(symbols: list[int], extra: bytes) -> list[int]:
    bits, left, found = int.from_bytes(extra, "little"), 8 * len(extra), []
    for symbol in symbols:
        width = max(0, symbol // 2 - 1)
        found.append(((2 + symbol % 2 << width) if symbol > 1 else symbol) + bits % (1 << width))
        bits, left = bits >> width, left - width
    assert bits == 0 and 0 <= left < 8
    return found


def in_classes(streams: list[bytes], base: list[int], width: int) -> tuple[list[int], list[int]]:
    """Positions and values, in class order."""
    by_key: list[list[int]] = [[] for _ in range(256)]
    for place, code in enumerate(base):
        by_key[(code >> (8 * width - 9)) % 256 if width > 1 else code % 128].append(place)
    tables = runs(streams[1])
    gap_symbols = coded(streams[2], [gaps for gaps, _ in tables])
    value_symbols = coded(streams[3], [values for _, values in tables])
    both = numbers([s for pair in zip(gap_symbols, value_symbols, strict=True) for s in pair], streams[4])
    first, *counts = varints(streams[0])
    gaps, places = iter(both[::2]), []
    for key, count in enumerate(counts, first):
        at = 0
        for _ in range(count):
            at += next(gaps)
            places.append(by_key[key][at])
            at += 1
    assert next(gaps, None) is None
    return places, both[1::2]


def made(piece: dict[str, Any], streams: list[bytes], base: list[int], width: int) -> list[int]:
    size, modulus = piece["count"], 1 << (8 * width)
    if piece["kind"] == "same":
        return base
    if piece["kind"] == "full":
        return [(code >> 1) | (code & 1) << (8 * width - 1) for code in planes(streams)]
    if piece["kind"] == "dense":
        places, values = list(range(size)), symbols(piece["bits"], streams, size)
    elif piece["kind"] == "classes":
        places, values = in_classes(streams, base, width)
    else:
        places = positions(streams[0])
        values = symbols(piece["bits"], streams[1:], len(places))
    if piece["kind"] != "dense":
        values = [value + 1 for value in values]
    codes = list(base)
    for place, value in zip(places, values, strict=True):
        codes[place] = (codes[place] + (-(value + 1) // 2 if value % 2 else value // 2)) % modulus
    return codes


def read(path: Path, base: dict[str, tuple[str, list[int], bytes]]) -> list[tuple[dict[str, Any], bytes]]:
    """A shard's pieces, and what each one's codes become."""
    data = path.read_bytes()
    assert data[:4] == b"EQD2"
    stored, length = (int.from_bytes(data[at : at + 4], "little") for at in (4, 8))
    at, found = 12 + stored, []
    for piece in json.loads(stream(data[12:at], length)):
        width = WIDTHS[piece["dtype"]]
        streams = []
        for stored, length in piece["streams"]:
            streams.append(stream(data[at : at + stored], length))
            at += stored
        whole = base[piece["names"][0]][2] if piece["kind"] != "full" else b""
        old = whole[piece["start"] * width : (piece["start"] + piece["count"]) * width]
        codes = [int.from_bytes(old[place : place + width], "little") for place in range(0, len(old), width)]
        new = b"".join(code.to_bytes(width, "little") for code in made(piece, streams, codes, width))
        assert blake3(new).hexdigest() == piece["digest"]
        found.append((piece, new))
    assert at == len(data)
    return found


@pytest.mark.parametrize("route", [DELTA, ANCHOR], ids=["delta", "anchor"])
def test_the_page_says_enough_to_read_a_shard(route: list[Path]) -> None:
    base = BASE if route is DELTA else {}
    out = {name: bytearray(b"\xa5" * len(data)) for name, (_, _, data) in NEW.items()}
    for path in reversed(route):
        for piece, new in read(path, base):
            name, at = piece["names"][0], piece["start"] * WIDTHS[piece["dtype"]]
            assert [piece["dtype"], piece["shape"]] == list(NEW[name][:2])
            out[name][at : at + len(new)] = new
    assert out == {name: data for name, (_, _, data) in NEW.items()}


def test_the_vector_has_all_that_the_page_speaks_of() -> None:
    pieces = [piece for path in DELTA for piece in read_header(path.read_bytes())[0]]
    assert {piece.kind for piece in pieces} == {"same", "gaps", "classes", "dense", "full"}
    assert {(piece.kind, piece.bits) for piece in pieces} >= {("gaps", 4), ("gaps", 8), ("dense", 4), ("dense", 8)}
    assert any(len(piece.names) > 1 for piece in pieces)
    assert any(piece.count == 0 for piece in pieces) and any(piece.shape == () for piece in pieces)
    assert {piece.dtype for piece in pieces if piece.kind == "classes"} == {"BF16", "F32", "U8"}
    assert len(DELTA) > 1 and any(piece.start for piece in pieces)
    assert any(stored < length for piece in pieces for stored, length in piece.streams)
    assert {math.prod(piece.shape) for piece in pieces} >= {0, 1}


@pytest.mark.parametrize("path", sorted(VECTOR.glob("refused/*.shard")), ids=lambda path: path.stem)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_shard_that_departs_from_the_page_is_refused_though_its_result_is_right(path: Path, in_place: bool) -> None:
    """In place, also if the result is there already."""
    for codes in (departures.BASE, departures.NEW) if in_place else (departures.BASE,):
        base = {"w": torch.tensor(list(codes), dtype=torch.uint8)}
        with pytest.raises(BadDelta):
            apply(path.read_bytes(), base, base if in_place else {"w": torch.zeros(5, dtype=torch.uint8)})
        assert bytes(base["w"].tolist()) == codes


def test_what_those_shards_depart_from_is_taken_and_they_are_all_in_the_vector() -> None:
    base, out = torch.tensor(list(departures.BASE), dtype=torch.uint8), torch.zeros(5, dtype=torch.uint8)
    for data in departures.GOOD.values():
        apply(data, {"w": base}, {"w": out})
        assert bytes(out.tolist()) == departures.NEW
    stored = {path.stem: path.read_bytes() for path in VECTOR.glob("refused/*.shard")}
    assert stored == departures.DEPARTURES


@pytest.mark.parametrize("route", [DELTA, ANCHOR], ids=["delta", "anchor"])
def test_shards_of_an_older_writer_are_still_read(route: list[Path]) -> None:
    base, expected = (load_file(VECTOR / f"{name}.safetensors") for name in ("base", "new"))
    out = {name: tensor.clone().fill_(1) for name, tensor in expected.items()}
    out["head"] = out["embedding"].clone()
    for path in route:
        apply(path.read_bytes(), base, out)
    for name, tensor in (expected | {"head": expected["embedding"]}).items():
        assert on_host(flat(out[name])).tobytes() == on_host(flat(tensor)).tobytes(), name
