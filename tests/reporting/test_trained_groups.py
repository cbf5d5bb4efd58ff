"""The last groups trained are kept, no more than asked for, and found by name or as the newest."""

from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.records import Group, Version
from echo_queue.records.group_codec import CodecError, encode
from echo_queue.reporting.trained_groups import TrainedGroups, in_directory, in_store
from tests.learner.synthetic import group


def config(folder: Path, keep_groups: int = 4) -> Config:
    values = {
        "run": {"name": "r", "dir": folder},
        "learner": {"batch_groups": 2},
        "telemetry": {"keep_groups": keep_groups},
    }
    return Config.model_validate(values)


def kept(folder: Path, keep_groups: int = 4) -> TrainedGroups:
    return TrainedGroups(config(folder, keep_groups))


def update(version: int) -> list[Group]:
    return [group(2 * version), group(2 * version + 1)]


def test_what_was_trained_last_is_found_and_what_was_before_has_made_room(tmp_path: Path) -> None:
    for version in range(1, 6):
        kept(tmp_path).keep(Version(3, version), update(version))
    found = in_directory(config(tmp_path), "set/0/9")
    assert found is not None and found.version == Version(3, 4)
    assert encode(found.group) == encode(group(9))
    assert in_directory(config(tmp_path), "set/0/8") and in_directory(config(tmp_path), "set/0/11")
    assert in_directory(config(tmp_path), "set/0/7") is None
    assert len(list((tmp_path / "groups").iterdir())) == 2


def test_the_newest_is_that_of_the_newest_lineage(tmp_path: Path) -> None:
    kept(tmp_path).keep(Version(1, 9), update(9))
    kept(tmp_path).keep(Version(2, 8), update(8))
    found = in_directory(config(tmp_path))
    assert found is not None and (found.version, found.group.task) == (Version(2, 8), "set/0/16")


def test_nothing_is_kept_where_nothing_is_wanted(tmp_path: Path) -> None:
    kept(tmp_path, keep_groups=0).keep(Version(1, 1), update(1))
    assert not list(tmp_path.iterdir())
    assert in_directory(config(tmp_path)) is None


def test_a_damaged_file_is_said_to_be_one(tmp_path: Path) -> None:
    kept(tmp_path).keep(Version(1, 1), update(1))
    (path,) = (tmp_path / "groups").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CodecError):
        in_directory(config(tmp_path), "set/0/3")


def test_the_store_holds_the_same_once_they_are_sent_and_no_more_of_them(tmp_path: Path) -> None:
    server = S3Server(tmp_path / "s3", StoreKeys("GROUPSTESTKEY0000000", "s" * 40))
    server.start()
    try:
        store = ObjectStore(server.endpoint("tests"), "r")
        store.create_bucket()
        groups = kept(tmp_path)
        for version in range(1, 4):
            groups.keep(Version(3, version), update(version))
        assert in_store(store) is None
        groups.send(store)
        later = kept(tmp_path)  # a learner that was started again
        later.keep(Version(4, 4), update(4))
        later.send(store)
        for task in (None, "set/0/6", "set/0/7", "set/0/8", "set/0/9"):
            here, there = in_directory(config(tmp_path), task), in_store(store, task)
            assert here and there and here.version == there.version and encode(here.group) == encode(there.group)
        assert in_store(store, "set/0/5") is None
        assert len(list(store.list("trained/"))) == 2
    finally:
        server.stop()
