"""Promise: a signed document that departs from docs/weights.md is refused, before anything is allocated for it."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from echo_queue.records import Version
from echo_queue.weights import Announcement, Damaged, Manifest, Part, Route, TensorInfo
from echo_queue.weights.manifest import (
    CHUNK_MAX_BYTES,
    PART_MAX_BYTES,
    PARTS_MAX,
    canonical,
    part_key,
    root_digest,
)

DIGEST = "ab" * 32
VERSION, BASE = Version(2, 7), Version(2, 6)
PART = Part(part_key(VERSION, BASE, [DIGEST]), 100, 1024, (DIGEST,))
TENSORS = (TensorInfo("a", "F32", (3,), DIGEST), TensorInfo("c", "BF16", (2, 5), DIGEST))
ROOT = root_digest(TENSORS, {"b": "a"})
ROUTE = Route("run", VERSION, BASE, ROOT, DIGEST, (PART,))
MANIFEST = Manifest("run", VERSION, TENSORS, {"b": "a"}, ROOT, ROUTE)
ANNOUNCED = Announcement("run", VERSION, BASE, DIGEST, 0, PART)
Change = Callable[[Any], object]


def rooted(body: Any) -> None:
    """Gives the manifest the root of the tensors that it has now."""
    body["root"] = root_digest([TensorInfo(**one) for one in body["tensors"]], body["aliases"])


def test_what_the_departures_depart_from_is_taken() -> None:
    for document in (MANIFEST, ROUTE, ANNOUNCED):
        assert type(document).decode(document.encode(), "here") == document


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda body: body["tensors"].reverse(), id="tensors that are not sorted"),
        pytest.param(lambda body: body.update(aliases={"0": "a"}), id="an owner that is not the first of its names"),
        pytest.param(lambda body: body.update(aliases={"b": "d"}), id="an alias of nothing"),
    ],
)
def test_tensors_have_one_order(change: Change) -> None:
    body = orjson.loads(MANIFEST.encode())
    change(body)
    rooted(body)
    with pytest.raises(Damaged):
        Manifest.decode(canonical(body), "here")


def changes_of_a_part() -> list[Any]:
    return [
        pytest.param(lambda part: part.update(chunk_bytes=CHUNK_MAX_BYTES + 1), id="a chunk that no reader holds"),
        pytest.param(lambda part: part.update(chunk_bytes=1 << 50), id="a chunk that no machine holds"),
        pytest.param(
            lambda part: part.update(size=PART_MAX_BYTES + 1, chunk_bytes=CHUNK_MAX_BYTES, chunks=[DIGEST] * 21),
            id="a part that no store takes",
        ),
    ]


@pytest.mark.parametrize("change", changes_of_a_part())
def test_parts_and_chunks_have_bounds(change: Change) -> None:
    route, announced = orjson.loads(ROUTE.encode()), orjson.loads(ANNOUNCED.encode())
    change(route["route"]["parts"][0])
    change(announced["part"])
    with pytest.raises(Damaged, match="chunks of"):
        Route.decode(canonical(route), "here")
    with pytest.raises(Damaged, match="chunks of"):
        Announcement.decode(canonical(announced), "here")


@pytest.mark.slow
def test_a_route_has_so_many_parts_at_most() -> None:
    body = orjson.loads(ROUTE.encode())
    body["route"]["parts"] *= PARTS_MAX + 1
    with pytest.raises(Damaged, match=f"more than {PARTS_MAX} parts"):
        Route.decode(canonical(body), "here")
    announced = orjson.loads(ANNOUNCED.encode()) | {"place": PARTS_MAX}
    with pytest.raises(Damaged, match="place"):
        Announcement.decode(canonical(announced), "here")


@pytest.mark.parametrize("base", [Version(1, 6), Version(1, 9), Version(3, 1), VERSION, Version(2, 8)])
def test_a_base_is_an_earlier_version_of_the_same_lineage(base: Version) -> None:
    named = {"lineage": base.lineage, "number": base.number, "root": DIGEST}
    route, announced = orjson.loads(ROUTE.encode()), orjson.loads(ANNOUNCED.encode())
    route["route"]["base"] = announced["base"] = named
    with pytest.raises(Damaged, match="is not before"):
        Route.decode(canonical(route), "here")
    with pytest.raises(Damaged, match="is not before"):
        Announcement.decode(canonical(announced), "here")
