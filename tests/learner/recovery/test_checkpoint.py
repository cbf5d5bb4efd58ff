import threading

import pytest
import torch

from echo_queue import failpoints
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import FencedError, ServiceError
from echo_queue.records import Version
from learner.recovery import archive, checkpoint
from learner.recovery.manifest import CheckpointManifest
from tests.learner.recovery import one_process
from tests.learner.recovery.one_process import newest

TENSORS = {"weight": torch.arange(6.0).view(2, 3), "rng": torch.get_rng_state()}


def save(
    store: ObjectStore,
    number: int,
    parent: CheckpointManifest | None = None,
    lineage: int = 1,
    ids: tuple[str, ...] = (),
) -> CheckpointManifest:
    tensors = TENSORS | {"weight": TENSORS["weight"] + number}
    return one_process.save(store, Version(lineage, number), tensors, trained=ids, parent=parent, window=1.25)


def damage(store: ObjectStore, manifest: CheckpointManifest) -> None:
    data = bytearray(store.get(manifest.keys[0]))
    data[-1] ^= 1
    store.put(manifest.keys[0], bytes(data))


def test_there_is_none_before_the_first(store: ObjectStore) -> None:
    assert newest(store) is None
    assert checkpoint.trained_ids(store) == []


def test_what_was_saved_comes_back(store: ObjectStore) -> None:
    saved = save(store, 3, ids=("a/0/1", "a/0/2"))
    found = newest(store)
    assert found is not None
    manifest, tensors = found
    assert manifest == saved
    assert (manifest.window, manifest.trained) == (1.25, ("a/0/1", "a/0/2"))
    assert torch.equal(tensors["weight"], TENSORS["weight"] + 3)
    assert torch.equal(tensors["rng"], TENSORS["rng"])


def test_a_window_that_is_a_whole_number_comes_back(store: ObjectStore) -> None:
    """JSON may spell it without a point."""
    saved = one_process.save(store, Version(1, 1), TENSORS, trained=(), parent=None, window=5)
    found = newest(store)
    assert found is not None
    assert found[0] == saved


def test_a_later_lineage_counts_more_than_a_higher_version(store: ObjectStore) -> None:
    first = save(store, 10)
    save(store, 30, first)
    fork = save(store, 20, first, lineage=2)
    found = newest(store)
    assert found is not None and found[0] == fork


class Cut(Exception):
    """The learner dies here."""


class Noting:
    """Notes the keys that are read from the store."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def before(self, step: str, about: object) -> None:
        if step.startswith("get "):
            self._asked.append(str(about))

    def after(self, step: str, about: object, answer: object) -> None:
        pass


class AfterStep:
    """Cuts off what is done after a step of that name."""

    def __init__(self, step: str) -> None:
        self._step = step

    def before(self, step: str, about: object) -> None:
        pass

    def after(self, step: str, about: object, answer: object) -> None:
        if step == self._step:
            raise Cut(step)


class After:
    """Cuts off what is done after `left` steps, in whatever thread."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._lock = threading.Lock()

    def before(self, step: str, about: object) -> None:
        with self._lock:
            if self.left == 0:
                raise Cut(step)
            self.left -= 1

    def after(self, step: str, about: object, answer: object) -> None:
        pass


def test_a_save_that_is_cut_off_leaves_no_checkpoint(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(store.puts_once, bool)  # finding out takes steps of its own
    for steps in range(10):
        monkeypatch.setattr(failpoints, "observer", After(steps))
        try:
            save(store, 1 + steps)
        except Cut:
            monkeypatch.setattr(failpoints, "observer", None)
            assert newest(store) is None
        else:
            break
    assert steps > 1


@pytest.mark.parametrize("harm", ["without a manifest", "a torn manifest", "damaged tensors", "no tensors"])
def test_a_checkpoint_that_is_not_whole_is_passed_over(store: ObjectStore, harm: str) -> None:
    first = save(store, 10)
    second = save(store, 20, first)
    place = f"checkpoints/{second.name}/manifest.json"
    match harm:
        case "without a manifest":
            store.delete([place])
        case "a torn manifest":
            store.put(place, store.get(place)[:40])
        case "damaged tensors":
            damage(store, second)
        case "no tensors":
            store.delete(second.keys[-1:])
    found = newest(store)
    assert found is not None and found[0] == first


def test_beginning_again_because_all_are_damaged_is_left_to_a_person(store: ObjectStore) -> None:
    damage(store, save(store, 10))
    with pytest.raises(ServiceError, match="no checkpoint is whole"):
        newest(store)


def test_saving_again_is_harmless_and_another_learner_is_refused(store: ObjectStore) -> None:
    first = save(store, 10, ids=("a/0/1",))
    assert save(store, 10, ids=("a/0/1",)) == first
    with pytest.raises(FencedError):
        save(store, 10, ids=("a/0/2",))
    found = newest(store)
    assert found is not None and found[0] == first


def test_the_tensors_of_the_caller_are_filled_in_place(store: ObjectStore) -> None:
    """A model's own parameters are never held twice; what fits no tensor of the caller's comes in a new one."""
    save(store, 3)
    own = {"weight": torch.zeros(2, 3), "rng": torch.zeros(2, dtype=torch.uint8), "other": torch.zeros(1)}
    found = newest(store, own)
    assert found is not None
    assert torch.equal(own["weight"], TENSORS["weight"] + 3)
    assert found[1]["weight"].data_ptr() == own["weight"].data_ptr()
    assert torch.equal(found[1]["rng"], TENSORS["rng"]) and not own["rng"].any()
    assert sorted(found[1]) == ["rng", "weight"]


def test_tensors_half_filled_from_a_damaged_checkpoint_are_those_of_the_one_before(store: ObjectStore) -> None:
    first = save(store, 10)
    tensors = {"weight": torch.ones(2, 3), "rng": TENSORS["rng"]}
    second = one_process.save(store, Version(1, 20), tensors, trained=(), parent=first, window=1.0, file_bytes=200)
    assert len(second.files) > 1
    store.delete([second.folder + file.name for file in second.files if file.rows[0].name == "rng"])
    own = {"weight": torch.zeros(2, 3)}
    found = newest(store, own)
    assert found is not None and found[0] == first
    assert torch.equal(own["weight"], TENSORS["weight"] + 10)


def test_pruning_keeps_the_newest_tensors_and_every_id_ever_trained(store: ObjectStore) -> None:
    parent, history = None, []
    for number in range(1, 6):
        parent = save(store, number, parent, ids=(f"a/0/{number}",))
        history.append(parent)
    assert parent is not None
    checkpoint.prune(store, parent, keep=2)
    assert [all(map(store.exists, manifest.keys)) for manifest in history] == [False, False, False, True, True]
    assert checkpoint.trained_ids(store) == [f"a/0/{number}" for number in range(1, 6)]


def a_history(store: ObjectStore, length: int, lineage: int = 1) -> list[CheckpointManifest]:
    """Saves checkpoints one after the other, and prunes after each."""
    made: list[CheckpointManifest] = []
    for number in range(1, length + 1):
        made.append(save(store, number, made[-1] if made else None, lineage, (f"a/0/{number}",)))
        checkpoint.prune(store, made[-1], keep=2)
    return made


def test_older_manifests_are_archived_and_a_walk_reads_each_archive_once(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MANIFESTS", 4)
    made = a_history(store, 10)
    listed = archive.keys(store)
    assert len([key for key in listed if key.endswith(archive.SUFFIX)]) == 2, "of four each"
    assert archive.standing(listed) == [manifest.name for manifest in made[-2:]]
    assert archive.stored_names(store) == {manifest.name for manifest in made}
    found = newest(store)
    assert found is not None and found[0] == made[-1]
    asked: list[str] = []
    monkeypatch.setattr(failpoints, "observer", Noting(asked))
    assert checkpoint.trained_ids(store) == [f"a/0/{number}" for number in range(1, 11)]
    assert len([key for key in asked if key.endswith(archive.SUFFIX)]) == 2


@pytest.mark.parametrize("step", ["put checkpoints", "delete checkpoints/manifest.json"])
def test_a_crash_while_manifests_are_archived_loses_none(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    made = a_history(store, 6)
    monkeypatch.setattr(archive, "MANIFESTS", 4)
    with monkeypatch.context() as dying:
        dying.setattr(failpoints, "observer", AfterStep(step))
        with pytest.raises(Cut):
            checkpoint.prune(store, made[-1], keep=2)
    assert checkpoint.trained_ids(store) == [f"a/0/{number}" for number in range(1, 7)]
    checkpoint.prune(store, made[-1], keep=2)
    assert len([key for key in archive.keys(store) if key.endswith(archive.SUFFIX)]) == 1, "the same object again"
    assert checkpoint.trained_ids(store) == [f"a/0/{number}" for number in range(1, 7)]


def test_a_damaged_archive_is_named_and_never_believed(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MANIFESTS", 4)
    a_history(store, 6)
    (key,) = [key for key in archive.keys(store) if key.endswith(archive.SUFFIX)]
    store.put(key, store.get(key).replace(b"a/0/3", b"a/0/9"))
    with pytest.raises(ValueError, match="is damaged: restore that object"):
        checkpoint.trained_ids(store)


def test_what_a_fork_left_behind_is_archived_with_the_rest(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MANIFESTS", 4)
    made = a_history(store, 3)
    newer = checkpoint.mark(store, 2, made[1])
    for number in range(3, 8):
        newer = save(store, number, newer, 2, (f"b/0/{number}",))
        checkpoint.prune(store, newer, keep=2)
    assert made[2].name not in archive.standing(archive.keys(store)), "nobody descends from it"
    assert archive.ManifestReader(store).read(made[2].name).trained == made[2].trained
    assert checkpoint.trained_ids(store) == ["a/0/1", "a/0/2", *(f"b/0/{number}" for number in range(3, 8))]


def test_the_ledger_leaves_out_what_a_fork_left_behind(store: ObjectStore) -> None:
    first = save(store, 10, ids=("kept",))
    lost = save(store, 20, first, ids=("lost",))
    fork = save(store, 15, first, lineage=2, ids=("again",))
    assert checkpoint.trained_ids(store) == ["kept", "again"]
    checkpoint.prune(store, fork, keep=5)
    assert not any(map(store.exists, lost.keys))
