"""The shared folder: the remains of killed, hung and careless workers cost reads of the store, never weights."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.weights.peer_harness import HASTY_S, Member, PeerHarness, part_of, random_parts
from workers.weights.folder import TEMPORARY, SharedFolder

LIMIT = 1 << 30


@pytest.fixture
def shared(peer_harness: PeerHarness) -> Path:
    return peer_harness.folder.parent / "shared"


@pytest.fixture
def worker(peer_harness: PeerHarness) -> Callable[[str], Member]:
    return lambda name: peer_harness.member(name, transport="folder")


def test_a_part_lies_there_once_and_under_its_own_name(
    peer_harness: PeerHarness, shared: Path, worker: Callable[[str], Member]
) -> None:
    datas = random_parts(4, parts=2)
    route = peer_harness.publish(*datas)
    for name in "ab":
        assert sum(worker(name).fetch(route)) == route.size
    assert {path.name: path.read_bytes() for path in shared.iterdir()} == {
        part.key.replace("/", "_"): data for part, data in zip(route.parts, datas, strict=True)
    }


def test_what_a_killed_worker_was_writing_is_swept_and_what_a_living_one_writes_is_not(shared: Path) -> None:
    parts = [part_of(data) for data in random_parts(2, parts=2)]
    folder = SharedFolder(shared, LIMIT)
    dead, alive = (folder.path(part).with_suffix(TEMPORARY) for part in parts)
    dead.write_bytes(b"half of a part")
    with folder.claim(folder.path(parts[1])) as (_, mine):
        assert mine
        SharedFolder(shared, LIMIT)
        assert not dead.exists() and alive.exists()
    SharedFolder(shared, LIMIT)
    assert not alive.exists()


def test_a_part_has_one_claim_at_a_time(shared: Path) -> None:
    folder, path = SharedFolder(shared, LIMIT), shared / "a.part"
    with folder.claim(path) as (_, first), SharedFolder(shared, LIMIT).claim(path) as (_, second):
        assert first and not second
    with SharedFolder(shared, LIMIT).claim(path) as (_, third):
        assert third


def test_a_worker_that_claims_a_part_and_hangs_is_not_waited_for(
    peer_harness: PeerHarness, shared: Path, worker: Callable[[str], Member]
) -> None:
    datas = random_parts(4)
    route, member = peer_harness.publish(*datas), peer_harness.member("a", transport="folder", chunk_deadline_s=HASTY_S)
    temporary = SharedFolder(shared, LIMIT).path(route.parts[0]).with_suffix(TEMPORARY)
    with temporary.open("wb") as hung:
        fcntl.flock(hung, fcntl.LOCK_EX)
        assert member.fetch(route) == (route.size, 0)
    assert member.holds(route, datas)
    assert worker("b").fetch(route) == (route.size, 0), "the next one places it"
    assert worker("c").fetch(route) == (0, route.size)


def test_what_was_used_least_recently_makes_room(shared: Path) -> None:
    datas = random_parts(2, parts=3)
    parts = [part_of(data) for data in datas]
    folder = SharedFolder(shared, 2 * parts[0].size)

    def place(number: int) -> None:
        with folder.claim(folder.path(parts[number])) as (claim, mine):
            assert mine
            folder.place(claim, parts[number], memoryview(datas[number]))
        os.utime(folder.path(parts[number]), (1e9 + number, 1e9 + number))

    place(0)
    place(1)
    os.utime(folder.path(parts[0]), (2e9, 2e9))  # it was read after that
    place(2)
    assert [folder.has(part) for part in parts] == [True, False, True]


@pytest.mark.parametrize("wrong", [b"", b"short", b"x" * 500_000])
def test_a_part_of_another_length_is_read_from_the_store_and_replaced(
    peer_harness: PeerHarness, shared: Path, worker: Callable[[str], Member], wrong: bytes
) -> None:
    datas = random_parts(4)
    route = peer_harness.publish(*datas)
    SharedFolder(shared, LIMIT).path(route.parts[0]).write_bytes(wrong)
    member = worker("a")
    assert member.fetch(route) == (route.size, 0) and member.holds(route, datas)
    assert worker("b").fetch(route) == (0, route.size)


def test_a_folder_that_cannot_be_used_costs_reads_of_the_store(
    peer_harness: PeerHarness, shared: Path, worker: Callable[[str], Member], caplog: pytest.LogCaptureFixture
) -> None:
    shared.write_text("a file where the folder should be")
    datas = random_parts(4)
    route = peer_harness.publish(*datas)
    for name in "ab":
        member = worker(name)
        assert member.fetch(route) == (route.size, 0) and member.holds(route, datas)
    assert "is not shared" in caplog.text


def test_a_folder_that_is_removed_meanwhile_costs_reads_of_the_store(
    peer_harness: PeerHarness, shared: Path, worker: Callable[[str], Member]
) -> None:
    member, route = worker("a"), peer_harness.publish(*random_parts(4))
    shared.rmdir()
    assert member.fetch(route) == (route.size, 0)
