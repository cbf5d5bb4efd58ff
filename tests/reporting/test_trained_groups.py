"""The last groups trained are kept, no more than asked for, and found by name or as the newest."""

from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.records import Group, Version
from echo_queue.records.group_codec import CodecError, encode
from echo_queue.reporting.trained_groups import TrainedGroups
from tests.learner.synthetic import group


def kept(folder: Path, keep_groups: int = 4) -> TrainedGroups:
    values = {
        "run": {"name": "r", "dir": folder},
        "learner": {"batch_groups": 2},
        "telemetry": {"keep_groups": keep_groups},
    }
    return TrainedGroups(Config.model_validate(values))


def update(version: int) -> list[Group]:
    return [group(2 * version), group(2 * version + 1)]


def test_what_was_trained_last_is_found_and_what_was_before_has_made_room(tmp_path: Path) -> None:
    for version in range(1, 6):
        kept(tmp_path).keep(Version(3, version), update(version))
    found = kept(tmp_path).find("set/0/9")
    assert found is not None and found.version == Version(3, 4)
    assert encode(found.group) == encode(group(9))
    assert kept(tmp_path).find("set/0/8") and kept(tmp_path).find("set/0/11")
    assert kept(tmp_path).find("set/0/7") is None
    assert len(list((tmp_path / "groups").iterdir())) == 2


def test_the_newest_is_that_of_the_newest_lineage(tmp_path: Path) -> None:
    kept(tmp_path).keep(Version(1, 9), update(9))
    kept(tmp_path).keep(Version(2, 8), update(8))
    found = kept(tmp_path).find()
    assert found is not None and (found.version, found.group.task) == (Version(2, 8), "set/0/16")


def test_nothing_is_kept_where_nothing_is_wanted(tmp_path: Path) -> None:
    kept(tmp_path, keep_groups=0).keep(Version(1, 1), update(1))
    assert not list(tmp_path.iterdir())
    assert kept(tmp_path).find() is None


def test_a_damaged_file_is_said_to_be_one(tmp_path: Path) -> None:
    kept(tmp_path).keep(Version(1, 1), update(1))
    (path,) = (tmp_path / "groups").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CodecError):
        kept(tmp_path).find("set/0/3")
