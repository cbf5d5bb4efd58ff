"""Promise: docs/weights.md is complete: what reads a store here was written from it and shares no code with ours."""

import json
import re
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from echo_queue import weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.records import Published, Version
from echo_queue.weights.reader import fetch_parts
from echo_queue.weights.tensors import digest_of
from tests.weights.store_vector import departures
from tests.weights.test_delta_vector import read
from tests.workers.publications import Bytes
from workers.weights.staging import Stage

VECTOR = Path(__file__).parent / "store_vector"
KEYS = json.loads((VECTOR / "keys.json").read_text())
VERIFIER, CHUNK_KEY = weights.SignatureVerifier(KEYS["public_key"]), bytes.fromhex(KEYS["chunk_key"])
ENVELOPE = re.compile(rb'\{"body":(.*),"key":"([0-9a-f]{16})","signature":"([0-9a-f]{128})"\}')
Tensors = dict[str, tuple[str, list[int], bytes]]
Reader = Callable[[ObjectStore, Published], Mapping[str, Tensor]]


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


def objects_in(folder: Path) -> dict[str, bytes]:
    """Returns the objects of a store by their keys."""
    files = (path for path in (folder / "weights").rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def put(object_store: ObjectStore, stored: Mapping[str, bytes], number: int) -> tuple[ObjectStore, Published]:
    """Returns the store as the vector's run has it, and its version 1.`number` as Redis would name it."""
    store = copy(object_store)
    store.prefix = f"{KEYS['run']}/"
    store.delete([one.key for one in store.list("weights/")])
    for key, data in stored.items():
        store.put(key, data)
    key = f"weights/0001/{number:08d}/manifest.json"
    return store, Published(Version(1, number), key, blake3(stored[key]).hexdigest())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_an_older_writer_stored_is_still_read(object_store: ObjectStore, number: int) -> None:
    store, published = put(object_store, objects_in(VECTOR), number)
    manifest = weights.read_manifest(store, published, VERIFIER)
    fetched = weights.fetch(store, published, VERIFIER, CHUNK_KEY)
    assert {info.name: info.digest for info in manifest.tensors} == {
        info.name: digest_of(fetched[info.name]) for info in manifest.tensors
    }


def newest(stored: Mapping[str, bytes]) -> int:
    return max(int(key.split("/")[2]) for key in stored)


def read_by_worker(store: ObjectStore, published: Published) -> Mapping[str, Tensor]:
    manifest, stage = weights.read_manifest(store, published, VERIFIER), Stage()
    routes = weights.find_path(store, None, manifest, VERIFIER)
    parts = {part.key: Bytes(data) for route in routes for part, data in fetch_parts(store, route)}
    stage.apply(routes, manifest, parts, CHUNK_KEY)
    return stage.tensors


def read_by_command(store: ObjectStore, published: Published) -> Mapping[str, Tensor]:
    return weights.fetch(store, published, VERIFIER, CHUNK_KEY)


READERS = pytest.mark.parametrize("reader", [read_by_worker, read_by_command])
ONE_STORE = pytest.mark.parametrize("s3_server", ["rclone"], indirect=True)


@ONE_STORE
@READERS
@pytest.mark.parametrize("what", departures.DEPARTURES)
def test_a_store_that_departs_from_the_page_is_refused_though_it_is_signed(
    object_store: ObjectStore, what: str, reader: Reader
) -> None:
    """All chunks are right, and the weights that come out often, too."""
    stored = objects_in(VECTOR / "refused" / what)
    assert stored == departures.DEPARTURES[what]
    with pytest.raises(ServiceError):
        reader(*put(object_store, stored, newest(stored)))


@ONE_STORE
@READERS
def test_what_those_stores_depart_from_is_taken(object_store: ObjectStore, reader: Reader) -> None:
    for stored in departures.GOOD.values():
        reader(*put(object_store, stored, newest(stored)))
    assert {folder.name for folder in (VECTOR / "refused").iterdir()} == departures.DEPARTURES.keys()
