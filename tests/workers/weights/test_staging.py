"""Promises of the stage: one copy, changed from version to version in place, whole or nothing."""

import random
from dataclasses import replace

import pytest
import torch

from echo_queue import weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.weights import Damaged, Manifest
from echo_queue.weights.delta import BadDelta
from echo_queue.weights.reader import OlderVersion
from tests.workers.publications import Bytes, Publications, holds, model
from workers.weights.staging import Stage

torch.set_num_threads(1)
pytestmark = pytest.mark.parametrize("s3_server", ["rclone"], indirect=True)


@pytest.fixture
def learner(object_store: ObjectStore) -> Publications:
    return Publications(object_store, model())


def lead(stage: Stage, learner: Publications, manifest: Manifest) -> int:
    """Applies the cheapest path; returns how many routes that were."""
    routes = weights.find_path(learner.store, stage.have, manifest, learner.verifier)
    stage.apply(routes, manifest, learner.parts(routes), learner.chunk_key)
    return len(routes)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("encrypt", [False, True])
def test_whatever_versions_are_missed_the_copy_is_bit_for_bit_the_published_one(
    object_store: ObjectStore, dtype: str, encrypt: bool
) -> None:
    learner = Publications(object_store, model(), dtype, encrypt=encrypt)
    stage, chance = Stage(), random.Random(dtype)
    for number in range(14):
        published = learner.publish(number)
        learner.drift()
        if chance.random() < 0.5:
            manifest = learner.manifest(published)
            lead(stage, learner, manifest)
            assert holds(stage.tensors, manifest)
            assert stage.have == (manifest.version, manifest.root)


def test_a_delta_changes_the_copy_in_place(learner: Publications) -> None:
    stage = Stage()
    lead(stage, learner, learner.manifest(learner.publish(0)))
    before = {name: tensor.data_ptr() for name, tensor in stage.tensors.items()}
    learner.drift()
    assert lead(stage, learner, learner.manifest(learner.publish(1))) == 1
    assert {name: tensor.data_ptr() for name, tensor in stage.tensors.items()} == before
    assert stage.tensors["head"] is stage.tensors["embedding"], "tied names share their memory"


def test_a_copy_that_was_damaged_is_noticed_and_comes_anew_from_an_anchor(learner: Publications) -> None:
    stage = Stage()
    lead(stage, learner, learner.manifest(learner.publish(0)))
    learner.drift()
    manifest = learner.manifest(learner.publish(1))
    stage.tensors["layers.3"].view(-1)[17] += 1
    with pytest.raises(BadDelta, match=r"layers\.3"):
        lead(stage, learner, manifest)
    assert stage.have is None
    assert lead(stage, learner, manifest) == 2, "the anchor, and the difference to it"
    assert holds(stage.tensors, manifest)


def test_a_part_that_was_damaged_after_it_was_verified_leaves_nothing_staged(learner: Publications) -> None:
    stage = Stage()
    manifest = learner.manifest(learner.publish(0))
    routes = weights.find_path(learner.store, None, manifest, learner.verifier)
    parts = learner.parts(routes)
    key = max(parts)
    spoilt = bytearray(parts[key].memory())
    spoilt[-3] ^= 1
    with pytest.raises(ServiceError):
        stage.apply(routes, manifest, parts | {key: Bytes(memoryview(spoilt))}, None)
    assert stage.have is None


def test_routes_that_lead_elsewhere_are_refused(learner: Publications) -> None:
    old = learner.manifest(learner.publish(0))
    learner.drift()
    new = learner.manifest(learner.publish(1))
    anchor = weights.find_path(learner.store, None, old, learner.verifier)
    stage = Stage()
    for routes, manifest, what in (
        (anchor, new, "its routes lead elsewhere"),
        ((new.route,), new, "begins elsewhere"),
        ((), new, "no route leads to it"),
    ):
        with pytest.raises(Damaged, match=what):
            stage.apply(routes, manifest, learner.parts(routes), None)
        assert stage.have is None


def test_nobody_goes_back_to_an_older_version_unless_its_lineage_is_newer(learner: Publications) -> None:
    stage = Stage()
    old = learner.manifest(learner.publish(3))
    learner.drift()
    new = learner.manifest(learner.publish(4))
    lead(stage, learner, new)
    with pytest.raises(OlderVersion, match=r"1\.3 is older than 1\.4"):
        weights.find_path(learner.store, stage.have, old, learner.verifier)
    routes = weights.find_path(learner.store, None, old, learner.verifier)
    for _ in range(2):
        with pytest.raises(OlderVersion, match=r"1\.3 is older than 1\.4"):
            stage.apply(routes, old, learner.parts(routes), None)
        assert stage.have is None or stage.have[0] == new.version
        stage.forget()  # what was staged once counts, also if nothing is staged any more
    restarted = learner.manifest(learner.publish(0, lineage=2))
    lead(stage, learner, restarted)
    assert stage.have == (restarted.version, restarted.root)


def test_an_anchor_that_needs_what_is_here_is_refused(learner: Publications) -> None:
    """It would lead to the right weights here, and nowhere else."""
    stage = Stage()
    lead(stage, learner, learner.manifest(learner.publish(0)))
    learner.drift()
    manifest = learner.manifest(learner.publish(1))
    false = replace(manifest.route, base=None, base_root=None)
    with pytest.raises(BadDelta, match="there is no tensor"):
        stage.apply((false,), manifest, learner.parts((false,)), None)


def test_a_route_that_brings_a_piece_twice_is_refused_before_the_piece_is_made_again(learner: Publications) -> None:
    manifest = learner.manifest(learner.publish(0))
    twice = replace(manifest.route, parts=manifest.route.parts * 2)
    with pytest.raises(BadDelta, match="more elements than the tensor has"):
        Stage().apply((twice,), manifest, learner.parts((twice,)), None)


def test_tensors_that_are_tied_no_more_share_no_memory(object_store: ObjectStore) -> None:
    tensors = model()
    stage = Stage()
    tied = Publications(object_store, tensors)
    lead(stage, tied, tied.manifest(tied.publish(0)))
    apart = Publications(object_store, tensors | {"head": tensors["head"] + 1})
    manifest = apart.manifest(apart.publish(0, lineage=2))
    lead(stage, apart, manifest)
    assert holds(stage.tensors, manifest)


def test_a_base_model_is_adopted_bit_for_bit(learner: Publications) -> None:
    stage, tensors = Stage(), model()
    manifest = learner.manifest(learner.publish(0))
    assert stage.adopt(manifest, tensors.__getitem__) == manifest.root
    learner.drift()
    following = learner.manifest(learner.publish(1))
    assert lead(stage, learner, following) == 1
    assert holds(stage.tensors, following)
    assert torch.equal(tensors["layers.0"], model()["layers.0"]), "the engine's own tensors are left alone"


def test_another_base_model_has_another_root(learner: Publications) -> None:
    manifest = learner.manifest(learner.publish(0))
    other = model()
    other["scalar"] = -other["scalar"]
    assert Stage().adopt(manifest, other.__getitem__) != manifest.root
