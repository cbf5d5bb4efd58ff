"""Stores that depart from docs/weights.md in one thing each, all other things, digests and signatures being right.

They have the keys of the vector beside them, and tensors `v` and `w` of type U8. Each has an anchor, version 1.0, and a
delta to 1.1 that changes the first code of `w`; a reader that wants the newest version refuses the store.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from echo_queue.records import Version
from echo_queue.weights import Manifest, Part, Route, TensorInfo
from echo_queue.weights.ciphers import cut
from echo_queue.weights.manifest import (
    TAG_BYTES,
    digest,
    folder,
    folder_name,
    manifest_key,
    part_key,
    root_digest,
    tensor_digest,
)
from tests.weights.published_weights import CHUNK_KEY, SIGNER
from tests.weights.vector.departures import BASE, NEW, entry, rotated, shard

RUN = "vector"
CHUNK = 1_024
V = bytes([7, 8, 9])
Store = dict[str, bytes]
Made = tuple[Part, bytes]
"""A part, and its bytes as they are stored."""
Cut = Callable[[Version, Version | None, bytes], Made]


def piece(name: str, kind: str, codes: bytes, streams: Sequence[bytes] = (), **other: Any) -> dict[str, Any]:
    return entry(kind, streams, codes) | {"names": [name], "shape": [len(codes)]} | other


def anchor(**of_w: Any) -> bytes:
    streams = rotated(V), rotated(BASE)
    return shard([piece("v", "full", V, streams[:1]), piece("w", "full", BASE, streams[1:], **of_w)], streams)


CHANGE = b"\0", b"\x01", b""
SAME = piece("v", "same", V)


def delta(
    *others: object, kind: str = "gaps", streams: Sequence[bytes] = CHANGE, new: bytes = NEW, **of_w: Any
) -> bytes:
    return shard([*others, piece("w", kind, new, streams, **({"bits": 4} if kind == "gaps" else {}), **of_w)], streams)


def whole(version: Version, base: Version | None, data: bytes) -> Made:
    return cut(version, base, data, CHUNK, None)


def of_another_cut(version: Version, base: Version | None, data: bytes) -> Made:
    """The part is one chunk for either length, so nothing but the salt tells."""
    part, stored = cut(version, base, data, CHUNK, CHUNK_KEY)
    return replace(part, chunk_bytes=2 * CHUNK), stored


def with_nothing_behind(version: Version, base: Version | None, data: bytes) -> Made:
    """Another chunk follows, which is a tag alone."""
    part, stored = cut(version, base, data, len(data) + TAG_BYTES, CHUNK_KEY)
    key = HKDF(SHA256(), 32, bytes.fromhex(part.salt), b"echo-queue weights 2 part").derive(CHUNK_KEY)
    tag = AESGCM(key).encrypt((1).to_bytes(12, "big"), b"", None)
    chunks = (*part.chunks, digest(tag))
    return Part(part_key(version, base, chunks), len(stored + tag), part.chunk_bytes, chunks, part.salt), stored + tag


def store(*shards: bytes, cut_as: Cut = whole, aliases: Mapping[str, str] | None = None, last: bytes = NEW) -> Store:
    """Version 1.0 from nothing by the first shard, and each further one from the one before it."""
    found: Store = {}
    base, base_root = None, None
    for number, data in enumerate(shards):
        version = Version(1, number)
        codes = BASE if number == 0 else last if number == len(shards) - 1 else NEW
        tensors = tuple(
            TensorInfo(name, "U8", (len(one),), tensor_digest([digest(one)])) for name, one in (("v", V), ("w", codes))
        )
        root = root_digest(tensors, aliases or {})
        part, stored = cut_as(version, base, data)
        route = Route(RUN, version, base, root, base_root, (part,))
        manifest = Manifest(RUN, version, tensors, aliases or {}, root, route)
        found[f"{folder(version)}{folder_name(base)}/{part.key.rpartition('/')[2]}"] = stored
        found[manifest_key(version)] = SIGNER.sign(manifest.encode())
        base, base_root = version, root
    return found


AGAIN = bytes([2, *NEW[1:]])
"""`NEW`, changed once more."""
GOOD = {
    "whole": store(anchor(), delta(SAME)),
    "two deltas": store(anchor(), delta(SAME), delta(SAME, new=AGAIN), last=AGAIN),
    "tied": store(anchor(names=["w", "x"]), delta(SAME, names=["w", "x"]), aliases={"x": "w"}),
    "encrypted": store(anchor(), delta(SAME), cut_as=lambda *of: cut(*of, CHUNK, CHUNK_KEY)),
}
"""The stores from which the others depart."""
DEPARTURES = {
    "a piece same that is missing": store(anchor(), delta()),
    "a piece same that is missing on the way": store(anchor(), delta(), delta(SAME, new=AGAIN), last=AGAIN),
    "a digest of a piece that is another": store(anchor(), delta(SAME, digest=digest(BASE))),
    "a digest of an unchanged piece that is another": store(anchor(), delta(SAME | {"digest": digest(BASE)})),
    "a digest on the way that is another": store(
        anchor(), delta(SAME, digest=digest(BASE)), delta(SAME, new=AGAIN), last=AGAIN
    ),
    "a tied name that is missing": store(anchor(names=["w", "x"]), delta(SAME), aliases={"x": "w"}),
    "a salt of another cut": store(anchor(), delta(SAME), cut_as=of_another_cut),
    "a chunk with nothing in it": store(anchor(), delta(SAME), cut_as=with_nothing_behind),
}
