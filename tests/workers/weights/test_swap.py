"""Promises of a swap, with real engines: a swap is whole, or the engine is known to be spoilt."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ConfigError
from echo_queue.records import Version
from echo_queue.weights import Manifest, TensorInfo
from tests.workers.publications import Publications, holds
from tests.workers.worker_harness import tensors_of
from workers.engines.transformers.engine import TransformersEngine
from workers.weights.swap import FEW, FailedSwap, WeightSwap, probed

torch.set_num_threads(1)
pytestmark = pytest.mark.parametrize("s3_server", ["rclone"], indirect=True)


@pytest.fixture
def engine(folder: Path) -> TransformersEngine:
    return TransformersEngine(str(folder), Version(0, 0), "float32", 64)


@pytest.fixture
def learner(object_store: ObjectStore, folder: Path) -> Publications:
    tensors = {name: tensor.clone() for name, tensor in tensors_of(folder).items()}
    publications = Publications(object_store, tensors)
    publications.drift()
    return publications


def test_after_a_swap_the_live_engine_has_the_digests_of_the_manifest(
    learner: Publications, engine: TransformersEngine
) -> None:
    manifest = learner.manifest(learner.publish(0))
    swap = WeightSwap(engine)
    loading_s: list[float] = []
    load = engine.load

    def timed_load(version: Version, tensors: Mapping[str, Tensor]) -> None:
        began = time.monotonic()
        load(version, tensors)
        loading_s.append(time.monotonic() - began)

    engine.load = timed_load  # type: ignore[method-assign]
    began = time.monotonic()
    swap.swap(manifest, learner.tensors)
    swapped_s = time.monotonic() - began
    assert holds({info.name: engine.weight(info.name) for info in manifest.tensors}, manifest)
    assert engine.version == manifest.version
    assert 0 < sum(loading_s) <= swap.pause_s <= swapped_s


def test_what_the_engine_does_not_take_is_a_clear_error_and_the_old_version_serves(
    learner: Publications, engine: TransformersEngine
) -> None:
    manifest = learner.manifest(learner.publish(0))
    before = engine.weight("model.norm.weight").clone()
    for tensors, what in (
        (
            {name: tensor.bfloat16() for name, tensor in learner.tensors.items()},
            "is bfloat16, the engine holds float32",
        ),
        ({name: tensor for name, tensor in learner.tensors.items() if "norm" not in name}, "is missing"),
    ):
        with pytest.raises(ConfigError, match=what):
            WeightSwap(engine).swap(manifest, tensors)
        assert engine.version == Version(0, 0) and torch.equal(engine.weight("model.norm.weight"), before)


def test_a_load_that_fails_on_the_way_spoils_the_engine(learner: Publications, engine: TransformersEngine) -> None:
    manifest = learner.manifest(learner.publish(0))
    last = list(learner.tensors)[-1]
    broken = engine._model.get_parameter(last)

    def fail(*_: object) -> None:
        raise RuntimeError("the device is lost")

    broken.copy_ = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(FailedSwap, match="the device is lost"):
        WeightSwap(engine).swap(manifest, learner.tensors)


def test_an_engine_that_holds_other_bytes_than_were_published_is_noticed(
    learner: Publications, engine: TransformersEngine
) -> None:
    manifest = learner.manifest(learner.publish(0))
    name = manifest.tensors[-1].name
    wrong = learner.tensors | {name: learner.tensors[name] + 1}
    with pytest.raises(FailedSwap, match=f"{name} in the engine is not what was published"):
        WeightSwap(engine).swap(manifest, wrong)


def test_probes_cover_the_ends_and_in_time_everything(learner: Publications) -> None:
    manifest = learner.manifest(learner.publish(0))
    names: set[str] = set()
    for number in range(60):
        chosen = probed(at(manifest, number))
        assert chosen[0] == manifest.tensors[0] and chosen[-1] == manifest.tensors[-1]
        assert len(chosen) == FEW + 2 == len({info.name for info in chosen})
        names |= {info.name for info in chosen}
    assert names == {info.name for info in manifest.tensors}
    assert probed(at(manifest, 7)) == probed(at(manifest, 7)), "the same for every worker"


def test_a_small_model_is_probed_whole(learner: Publications) -> None:
    manifest = learner.manifest(learner.publish(0))
    few: tuple[TensorInfo, ...] = manifest.tensors[:4]
    small = Manifest(manifest.run, manifest.version, few, {}, manifest.root, manifest.route)
    assert probed(small) == list(few)


def at(manifest: Manifest, number: int) -> Manifest:
    version = Version(1, number)
    return Manifest(manifest.run, version, manifest.tensors, manifest.aliases, manifest.root, manifest.route)
