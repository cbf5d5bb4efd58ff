"""Promises of reading: what was not published by this run's learner is never loaded, whatever the store holds."""

import random
from collections.abc import Callable
from contextlib import suppress

import orjson
import pytest
import torch
from torch import Tensor

from echo_queue import weights
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.records import Published, Version
from echo_queue.weights import delta
from echo_queue.weights.catalogue import catalogue
from echo_queue.weights.delta import BadDelta
from echo_queue.weights.manifest import Damaged, Manifest, Route, digest, manifest_key, route_key
from echo_queue.weights.reader import fetch_parts, find_path, open_manifest, plain
from echo_queue.weights.signatures import Forged, Signer
from tests.weights.published_weights import (
    OTHER,
    SIGNER,
    VERIFIER,
    drifted,
    fetch,
    history,
    manifest_of,
    model,
    publish,
    publish_all,
    same,
    weight_publisher,
)


def parts(store: ObjectStore, published: Published) -> list[str]:
    return [part.key for part in manifest_of(store, published).route.parts]


def test_a_flipped_bit_is_never_loaded(object_store: ObjectStore) -> None:
    published = publish(object_store, model())
    key = parts(object_store, published)[-1]
    data = bytearray(object_store.get(key))
    data[len(data) // 2] ^= 1
    object_store.put(key, data)
    with pytest.raises(Damaged, match=key):
        fetch(object_store, published)


@pytest.mark.parametrize("change", [lambda data: data[:-9], lambda data: data + b"more", lambda data: b""])
def test_an_object_cut_off_or_longer_is_never_loaded(
    object_store: ObjectStore, change: Callable[[bytes], bytes]
) -> None:
    published = publish(object_store, model())
    key = parts(object_store, published)[-1]
    object_store.put(key, change(object_store.get(key)))
    with pytest.raises(ServiceError, match=key):
        fetch(object_store, published)


def test_exchanged_objects_are_never_loaded(object_store: ObjectStore) -> None:
    published = publish(object_store, model())
    first, second = parts(object_store, published)[:2]
    held = object_store.get(first), object_store.get(second)
    object_store.put(second, held[0])
    object_store.put(first, held[1])
    with pytest.raises(ServiceError, match=r"\.part"):
        fetch(object_store, published)


def test_a_manifest_other_than_the_pointers_is_refused(object_store: ObjectStore) -> None:
    learner = weight_publisher(object_store)
    published = learner.publish(Version(0, 0), model(), "float32")
    learner.publish(Version(0, 1), model(1), "float32")
    object_store.put(published.manifest, object_store.get(manifest_key(Version(0, 1))))
    with pytest.raises(Damaged, match="not those that were published"):
        fetch(object_store, published)


def pointed_at(store: ObjectStore, envelope: bytes, version: Version = Version(0, 0)) -> Published:  # noqa: B008
    """Returns the version as if Redis named it: only the manifest itself can be wrong."""
    store.put(manifest_key(version), envelope)
    return Published(version, manifest_key(version), digest(envelope))


def test_a_manifest_that_is_not_signed_with_the_trusted_key_is_refused(object_store: ObjectStore) -> None:
    body = manifest_of(object_store, publish(object_store, model())).encode()
    for envelope in (body, OTHER.sign(body), SIGNER.sign(body).replace(b'"run"', b'"ran"')):
        with pytest.raises(Forged, match=r"manifest\.json"):
            fetch(object_store, pointed_at(object_store, envelope))


def test_another_runs_or_versions_manifest_is_refused(object_store: ObjectStore) -> None:
    """Signed with the right key, as where two runs share one."""
    learner = weight_publisher(object_store, run="another")
    published = learner.publish(Version(0, 0), model(), "float32")
    with pytest.raises(Damaged, match="of run 'another'"):
        fetch(object_store, published)
    other = weight_publisher(object_store).publish(Version(0, 1), model(), "float32")
    with pytest.raises(Damaged, match=r"that of version 0\.1"):
        fetch(object_store, pointed_at(object_store, object_store.get(other.manifest), Version(0, 2)))


def test_a_pointer_that_leads_elsewhere_is_refused(object_store: ObjectStore) -> None:
    published = publish(object_store, model())
    with pytest.raises(Damaged, match="elsewhere"):
        fetch(object_store, Published(published.version, "elsewhere", published.digest))


def lies(body: bytes) -> dict[str, bytes]:
    """Returns changed manifests that a learner's key never signs, unless somebody else holds it."""

    def with_(change: Callable[[dict[str, object]], object]) -> bytes:
        values = orjson.loads(body)
        change(values)
        return orjson.dumps(values, option=orjson.OPT_SORT_KEYS)

    part = ("route", "parts", 0)

    def at(values: dict[str, object], *path: object) -> dict[str, object]:
        for step in path:
            values = values[step]  # type: ignore[index, assignment]
        return values

    return {
        "a part's own key": with_(lambda v: at(v, *part).update(key="../../etc/passwd")),
        "size": with_(lambda v: at(v, *part).update(size=1 << 40)),
        "no chunks": with_(lambda v: at(v, *part).update(chunks=[])),
        "chunk size": with_(lambda v: at(v, *part).update(chunk_bytes=0)),
        "negative": with_(lambda v: at(v, *part).update(size=-1)),
        "not a digest": with_(lambda v: at(v, *part).update(chunks=["../" * 21 + "a"])),
        "salt": with_(lambda v: at(v, *part).update(salt="../x")),
        "twice": with_(lambda v: at(v, "route", "parts").append(at(v, *part))),  # type: ignore[attr-defined]
        "shape": with_(lambda v: at(v, "tensors", 0).update(shape=[1 << 40, 1 << 40])),
        "type": with_(lambda v: at(v, "tensors", 0).update(dtype="F1")),
        "name twice": with_(lambda v: at(v, "tensors").append(at(v, "tensors", 0))),  # type: ignore[attr-defined]
        "alias": with_(lambda v: v.update(aliases={"head": "nothing like it"})),
        "root": with_(lambda v: v.update(root="00" * 32)),
        "pieces": with_(lambda v: v.update(piece_bytes=1)),
        "base": with_(lambda v: at(v, "route").update(base={"lineage": 9, "number": 9, "root": "00" * 32})),
        "lineage": with_(lambda v: v.update(lineage=0.0)),
        "a field more": with_(lambda v: v.update(more=1)),
        "spelling": body + b" ",
        "kind": with_(lambda v: v.update(kind="route")),
    }


def test_a_signed_manifest_that_lies_is_one_clear_error(object_store: ObjectStore) -> None:
    body = manifest_of(object_store, publish(object_store, model())).encode()
    for name, lie in lies(body).items():
        with pytest.raises(Damaged, match=r"manifest\.json: is no manifest"):
            fetch(object_store, pointed_at(object_store, SIGNER.sign(lie)))
            pytest.fail(f"the lie {name} was believed")


def test_a_manifest_of_an_unknown_format_asks_for_an_upgrade(object_store: ObjectStore) -> None:
    body = manifest_of(object_store, publish(object_store, model())).encode()
    newer = SIGNER.sign(body.replace(b'"format":2', b'"format":9'))
    with pytest.raises(ServiceError, match="upgrade"):
        fetch(object_store, pointed_at(object_store, newer))


def test_parts_that_are_whole_and_make_other_tensors_are_never_loaded(object_store: ObjectStore) -> None:
    """Everything is signed and every chunk is right; only the tensors' digests tell."""
    manifest = manifest_of(object_store, publish(object_store, {"w": torch.ones(9)}))
    other = manifest_of(
        object_store, weight_publisher(object_store).publish(Version(0, 1), {"w": torch.zeros(9)}, "float32")
    )
    mixed = Manifest(other.run, other.version, manifest.tensors, {}, manifest.root, _toward(other.route, manifest.root))
    published = pointed_at(object_store, SIGNER.sign(mixed.encode()), Version(0, 1))
    with pytest.raises(BadDelta, match="tensor w is not what was published"):
        fetch(object_store, published)


def _toward(route: Route, root: str) -> Route:
    return Route(route.run, route.version, route.base, root, route.base_root, route.parts)


def test_encrypted_parts_need_the_runs_key(object_store: ObjectStore) -> None:
    versions = history(2)
    published = publish_all(object_store, versions, encrypt=True)
    assert same(fetch(object_store, published[2]), versions[2])
    with pytest.raises(ServiceError, match="has no chunk key"):
        weights.fetch(object_store, published[2], VERIFIER)
    with pytest.raises(ServiceError, match="cannot be decrypted"):
        weights.fetch(object_store, published[2], VERIFIER, bytes(32))
    raw = versions[0]["layers.0"].numpy().tobytes()[:64]
    assert not any(raw in object_store.get(stored.key) for stored in object_store.list("weights/"))


# Paths ----------------------------------------------------------------------------------------------------------------


def way_to(store: ObjectStore, have: Published | None, target: Published, root: str = "") -> list[str]:
    known = None if have is None else (have.version, root or manifest_of(store, have).root)
    return [route.name[5:] for route in find_path(store, known, manifest_of(store, target), VERIFIER)]


def test_a_worker_takes_the_fewest_bytes_from_where_it_is(object_store: ObjectStore) -> None:
    published = publish_all(object_store, history(8), anchor_every=6)
    assert way_to(object_store, published[8], published[8]) == []
    assert way_to(object_store, published[7], published[8]) == ["00000008/from-0000.00000007"]
    assert way_to(object_store, published[6], published[8]) == ["00000008/from-0000.00000006"]
    assert way_to(object_store, published[0], published[8]) == ["00000008/from-0000.00000000"]
    assert way_to(object_store, published[3], published[8]) == [
        "00000004/from-0000.00000003",
        "00000008/from-0000.00000004",
    ]
    assert way_to(object_store, None, published[8]) == ["00000006/full", "00000008/from-0000.00000006"]
    assert way_to(object_store, None, published[5]) == [
        "00000000/full",
        "00000004/from-0000.00000000",
        "00000005/from-0000.00000004",
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_from_any_version_to_any_later_one_the_way_is_bit_exact(object_store: ObjectStore, dtype: str) -> None:
    """A reader works as a worker does, in place, from what it has; it misses versions, and changes are random."""
    chance, kind = random.Random(dtype), getattr(torch, dtype)
    learner, versions, published = weight_publisher(object_store, anchor_every=5, part_bytes=200_000), [model()], []
    for _ in range(8):
        number = (len(versions) - 1) * 3 + chance.randrange(3)
        published.append(learner.publish(Version(0, number), versions[-1], dtype))
        learner.further(Version(0, number))
        versions.append(drifted(versions[-1], number, chance.choice([0.001, 0.05, 0.9]), chance.choice([1e-5, 1e-2])))
    manifests = [manifest_of(object_store, pointer) for pointer in published]
    for here, there in [(0, 7), (3, 7), *(sorted(chance.sample(range(8), 2)) for _ in range(4))]:
        have = {name: _cast(tensor, kind) for name, tensor in versions[here].items()}
        have["head"] = have["embedding"]
        for route in find_path(
            object_store, (manifests[here].version, manifests[here].root), manifests[there], VERIFIER
        ):
            for part, stored in fetch_parts(object_store, route):
                delta.apply(plain(part, stored, None), have, have)
        assert same(have, versions[there], kind)


def _cast(tensor: Tensor, kind: torch.dtype) -> Tensor:
    return (tensor.to(kind) if tensor.is_floating_point() else tensor).contiguous().clone()


def test_the_usual_way_takes_no_look_at_the_store(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    published = publish_all(object_store, history(1))
    target, before = manifest_of(object_store, published[1]), manifest_of(object_store, published[0])
    monkeypatch.setattr(ObjectStore, "list", None)
    monkeypatch.setattr(ObjectStore, "get", None)
    assert find_path(object_store, (before.version, before.root), target, VERIFIER) == (target.route,)


def test_other_weights_under_a_versions_name_are_no_base(object_store: ObjectStore) -> None:
    published = publish_all(object_store, history(3))
    assert way_to(object_store, published[2], published[3], root="00" * 32)[0] == "00000000/full"
    assert way_to(object_store, published[3], published[3], root="00" * 32)[0] == "00000000/full"


def test_a_route_that_is_unfinished_or_not_ours_is_gone_around(object_store: ObjectStore) -> None:
    published = publish_all(object_store, history(4))
    straight = route_key(Version(0, 4), Version(0, 0))
    genuine = object_store.get(straight)
    assert way_to(object_store, published[0], published[4]) == ["00000004/from-0000.00000000"]
    around = ["00000002/from-0000.00000000", "00000004/from-0000.00000002"]
    body = VERIFIER.open(genuine, "test")
    shorter = body.replace(b'"run":"', b'"run":"not-')
    for spoiled in (b"", genuine[:-9], OTHER.sign(body), SIGNER.sign(shorter)):
        object_store.put(straight, spoiled)
        assert way_to(object_store, published[0], published[4]) == around
    object_store.delete([straight])
    assert way_to(object_store, published[0], published[4]) == around


def test_without_any_way_the_version_is_named(object_store: ObjectStore) -> None:
    published = publish_all(object_store, history(2))
    object_store.delete([manifest_key(Version(0, 0))])
    with pytest.raises(Damaged, match=r"00000002/manifest\.json: no routes"):
        fetch(object_store, published[2])


def test_stray_parts_of_a_learner_that_died_mislead_nobody(object_store: ObjectStore) -> None:
    versions = history(4)
    published = publish_all(object_store, versions)
    for stray in ("full", "from-0000.00000001"):
        object_store.put(f"weights/0000/00000004/{stray}/{'0' * 32}.part", b"half")
    entry = catalogue(object_store)[Version(0, 4)]
    assert (entry.main, entry.anchored) == (None, False)
    assert same(fetch(object_store, published[4]), versions[4])
    assert way_to(object_store, published[3], published[4]) == ["00000004/from-0000.00000003"]


def test_a_damaged_version_is_never_half_loaded_whatever_is_spoiled(object_store: ObjectStore) -> None:
    """Every object of a small version in turn, cut short, changed, exchanged or gone."""
    versions = history(1)
    published = publish_all(object_store, versions, part_bytes=200_000)[1]
    held = {stored.key: object_store.get(stored.key) for stored in object_store.list("weights/")}
    other = max(held.values(), key=len)
    for key, data in held.items():
        for spoiled in (data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1]), other if data != other else b"x"):
            object_store.put(key, spoiled)
            with suppress(ServiceError):
                assert same(fetch(object_store, published), versions[1]), f"a bad load by {key}"
                pytest.fail(f"{key} was spoiled, and no check noticed")
        object_store.delete([key])
        with pytest.raises((MissingObject, Damaged)):
            fetch(object_store, published)
        object_store.put(key, data)
    assert same(fetch(object_store, published), versions[1])


def test_open_manifest_of_a_stranger_is_forged(object_store: ObjectStore) -> None:
    stranger = Signer.generate()
    published = weight_publisher(object_store, stranger).publish(Version(0, 0), model(), "float32")
    with pytest.raises(Forged):
        open_manifest(object_store, object_store.get(published.manifest), published.version, VERIFIER)
    assert weights.latest(object_store, VERIFIER) is None
