"""Promise: docs/weights.md is complete: what reads a store here was written from it and shares no code with ours."""

import json
import re
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from echo_queue import weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Published, Version
from echo_queue.weights.tensors import digest_of
from tests.weights.test_delta_vector import read

VECTOR = Path(__file__).parent / "store_vector"
KEYS = json.loads((VECTOR / "keys.json").read_text())
ENVELOPE = re.compile(rb'\{"body":(.*),"key":"([0-9a-f]{16})","signature":"([0-9a-f]{128})"\}')
Tensors = dict[str, tuple[str, list[int], bytes]]


def of(digests: list[str]) -> str:
    return blake3(b"".join(map(bytes.fromhex, digests))).hexdigest()


def canonical(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def document(path: Path) -> dict[str, Any]:
    found = ENVELOPE.fullmatch(path.read_bytes())
    assert found
    public = bytes.fromhex(KEYS["public_key"])
    assert found[2].decode() == blake3(public).hexdigest()[:16]
    message = b"echo-queue weights 2\0" + found[1]
    Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(found[3].decode()), message)
    body: dict[str, Any] = json.loads(found[1])
    assert canonical(body) == found[1]
    assert (body["format"], body["run"]) == (2, KEYS["run"])
    return body


def shard(folder: Path, part: dict[str, Any]) -> bytes:
    data = (folder / f"{of(part['chunks'])[:32]}.part").read_bytes()
    assert len(data) == part["size"]
    salt = bytes.fromhex(part["salt"])
    cipher = AESGCM(HKDF(SHA256(), 32, salt, b"echo-queue weights 2 part").derive(bytes.fromhex(KEYS["chunk_key"])))
    clear = b""
    for index, digest in enumerate(part["chunks"]):
        chunk = data[index * part["chunk_bytes"] : (index + 1) * part["chunk_bytes"]]
        assert blake3(chunk).hexdigest() == digest
        clear += cipher.decrypt(index.to_bytes(12, "big"), chunk, None)
    return clear


def follow(folder: Path, route: dict[str, Any], base: Tensors, scratch: Path) -> Tensors:
    """The weights that a route makes of `base`; tensors here have one piece each."""
    made: Tensors = {}
    for part in route["parts"]:
        scratch.write_bytes(shard(folder, part))
        for piece, data in read(scratch, base):
            made |= {name: (piece["dtype"], piece["shape"], data) for name in piece["names"]}
    return made


def check(manifest: dict[str, Any], made: Tensors) -> None:
    assert manifest["root"] == blake3(canonical([manifest["tensors"], manifest["aliases"]])).hexdigest()
    for info in manifest["tensors"]:
        dtype, shape, data = made[info["name"]]
        assert (dtype, shape, of([blake3(data).hexdigest()])) == (info["dtype"], info["shape"], info["digest"])
    assert all(made[alias] == made[owner] for alias, owner in manifest["aliases"].items())


def test_the_page_says_enough_to_read_a_store(tmp_path: Path) -> None:
    folders = [VECTOR / "weights" / "0001" / f"{number:08d}" for number in range(3)]
    manifests = [document(folder / "manifest.json") for folder in folders]
    known: list[Tensors] = []
    for number, (folder, manifest) in enumerate(zip(folders, manifests, strict=True)):
        base = manifest["route"]["base"]
        name = "full" if base is None else f"from-{base['lineage']:04d}.{base['number']:08d}"
        assert base is None or base["root"] == manifests[number - 1]["root"]
        known.append(follow(folder / name, manifest["route"], known[-1] if known else {}, tmp_path / "shard"))
        check(manifest, known[-1])
    skip = folders[2] / "from-0001.00000000"
    route = document(skip / "route.json")
    assert (route["kind"], route["root"], route["number"]) == ("route", manifests[2]["root"], 2)
    assert route["route"]["base"]["root"] == manifests[0]["root"]
    check(manifests[2], follow(skip, route["route"], known[0], tmp_path / "shard"))
    assert [manifest["route"]["base"] is None for manifest in manifests] == [True, False, False]


def test_the_page_says_enough_to_read_an_announcement() -> None:
    announced, manifest = document(VECTOR / "announced.json"), document(VECTOR / "weights/0001/00000002/manifest.json")
    assert (announced["kind"], announced["lineage"], announced["number"]) == ("part", 1, 2)
    assert announced["base"] == manifest["route"]["base"]
    assert announced["part"] == manifest["route"]["parts"][announced["place"]]
    shard(VECTOR / "weights/0001/00000002/from-0001.00000001", announced["part"])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_an_older_writer_stored_is_still_read(object_store: ObjectStore, number: int) -> None:
    store = copy(object_store)
    store.prefix = f"{KEYS['run']}/"
    for path in VECTOR.rglob("*"):
        if path.suffix in (".part", ".json") and path.parent != VECTOR:
            store.put(path.relative_to(VECTOR).as_posix(), path.read_bytes())
    version, verifier = Version(1, number), weights.SignatureVerifier(KEYS["public_key"])
    key = f"weights/0001/{number:08d}/manifest.json"
    published = Published(version, key, blake3(store.get(key)).hexdigest())
    manifest = weights.read_manifest(store, published, verifier)
    fetched = weights.fetch(store, published, verifier, bytes.fromhex(KEYS["chunk_key"]))
    assert {info.name: info.digest for info in manifest.tensors} == {
        info.name: digest_of(fetched[info.name]) for info in manifest.tensors
    }
