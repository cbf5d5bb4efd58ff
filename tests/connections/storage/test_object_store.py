"""Promises of the object store, kept on every real server we can start."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.connections.storage import object_store as object_store_module
from echo_queue.connections.storage.object_store import INDEX, MissingObject, ObjectStore, ShortObject, Unreachable
from echo_queue.errors import ServiceError
from tests.servers.s3 import BUCKET, Server
from tests.servers.swift import Swift
from tests.waiting import wait_until


def test_what_is_put_comes_back_whole_and_in_ranges(object_store: ObjectStore) -> None:
    data = bytes(range(256)) * 100
    assert object_store.put("a/b", data)
    assert object_store.get("a/b") == data
    assert object_store.get_range("a/b", 250, 10) == data[250:260]
    assert object_store.get_range("a/b", 3, 0) == b""
    assert (object_store.size("a/b"), object_store.exists("a/b")) == (len(data), True)


def test_an_empty_object_is_an_object(object_store: ObjectStore) -> None:
    object_store.put("empty", b"")
    assert object_store.get("empty") == b""
    assert object_store.size("empty") == 0


def test_a_missing_object_is_named(object_store: ObjectStore) -> None:
    with pytest.raises(MissingObject, match="no object nowhere"):
        object_store.get("nowhere")
    assert object_store.size("nowhere") is None


@pytest.mark.parametrize("start", [0, 2, 50])
def test_a_range_beyond_the_end_is_never_a_short_answer(object_store: ObjectStore, start: int) -> None:
    object_store.put("short", b"12345")
    with pytest.raises(ShortObject):
        object_store.get_range("short", start, 100)


def test_of_eight_writers_at_once_what_stands_is_of_one_that_was_told_so(object_store: ObjectStore) -> None:
    """Exactly one writer is told so only where the server elects one, and no server that the tests can start does."""
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait()
        return object_store.put("once", b"writer %d" % number, once=True)

    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(write, range(8)))
    assert object_store.get("once") in [b"writer %d" % number for number in range(8) if wins[number]]


def test_the_probe_tells_servers_that_heed_put_once_from_those_that_do_not(
    s3_server: Server, object_store: ObjectStore
) -> None:
    heeds = ObjectStore(s3_server.endpoint(BUCKET), "probe").puts_once
    assert heeds == isinstance(s3_server, Swift)
    assert heeds or not object_store.elects_one()


def test_a_second_writer_changes_nothing(object_store: ObjectStore) -> None:
    assert object_store.put("once", b"first", once=True)
    assert not object_store.put("once", b"second", once=True)
    assert object_store.get("once") == b"first"


def test_a_put_repeated_after_a_lost_answer_still_succeeds(object_store: ObjectStore) -> None:
    assert object_store.put("once", b"same", once=True)
    assert object_store.put("once", b"same", once=True)


def test_a_torn_beginning_left_by_a_killed_server_is_written_anew(object_store: ObjectStore) -> None:
    store = ObjectStore(replace(object_store.endpoint, put_once=False), object_store.prefix.rstrip("/"))
    store.put("once", b'{"version')
    assert store.put("once", b'{"version": 1}', once=True)
    assert store.get("once") == b'{"version": 1}'


def test_listing_goes_on_over_pages_and_stays_in_its_run(object_store: ObjectStore) -> None:
    for number in range(23):
        object_store.put(f"list/{number:02d}", b"x" * number)
    object_store.put("other/1", b"")
    ObjectStore(object_store.endpoint, "another-run").put("list/99", b"")
    found = list(object_store.list("list/", page=5))
    assert [stored.key for stored in found] == [f"list/{number:02d}" for number in range(23)]
    assert [stored.size for stored in found] == list(range(23))
    assert list(object_store.list("nothing/")) == []


def test_deleting_twice_is_no_error(object_store: ObjectStore) -> None:
    object_store.put("a", b"1")
    object_store.put("b", b"2")
    object_store.delete(["a", "never"])
    object_store.delete(["a"])
    assert [stored.key for stored in object_store.list()] == ["b"]


def test_a_folder_comes_back_as_it_was(object_store: ObjectStore, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "sub" / "weights").write_bytes(bytes(300_000))
    object_store.upload_folder(source, "base")
    target.mkdir()
    (target / "stale").touch()
    object_store.download_folder("base", target)
    assert sorted(path.name for path in target.rglob("*")) == ["config.json", "sub", "weights"]
    assert (target / "sub" / "weights").read_bytes() == bytes(300_000)


def test_a_folder_whose_upload_was_cut_off_is_not_there(object_store: ObjectStore, tmp_path: Path) -> None:
    object_store.put("base/config.json", b"{}")
    with pytest.raises(MissingObject):
        object_store.download_folder("base", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_damaged_file_of_a_folder_is_refused(object_store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "weights").write_bytes(b"right")
    object_store.upload_folder(tmp_path / "source", "base")
    object_store.put("base/weights", b"wrong")
    with pytest.raises(ServiceError, match="base/weights"):
        object_store.download_folder("base", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_an_index_cannot_lead_out_of_its_folder(object_store: ObjectStore, tmp_path: Path) -> None:
    object_store.put(f"base/{INDEX}", b'{"../evil": {"size": 1, "blake3": ""}}')
    with pytest.raises(ServiceError, match="leads out"):
        object_store.download_folder("base", tmp_path / "target")
    assert not (tmp_path / "evil").exists()


def test_a_wrong_secret_is_refused_at_once(s3_server: Server) -> None:
    store = ObjectStore(replace(s3_server.endpoint(BUCKET), secret_key="wrong"), "run")
    for attempt in (store.check, lambda: store.put("a", b""), lambda: store.get("a")):
        with pytest.raises(ServiceError, match="ECHO_QUEUE_STORE_SECRET_KEY") as caught:
            attempt()
        assert not isinstance(caught.value, MissingObject | Unreachable)


def test_a_missing_bucket_is_named_and_not_made(s3_server: Server) -> None:
    store = ObjectStore(s3_server.endpoint("nobody-made-this"), "run")
    for attempt in (store.check, lambda: store.put("a", b""), lambda: store.get("a")):
        with pytest.raises(ServiceError) as caught:
            attempt()
        assert [problem.where for problem in caught.value.problems] == ["store.bucket"]
        assert not isinstance(caught.value, MissingObject)


def test_a_server_that_is_away_is_waited_for_no_longer_than_told(s3_server: Server) -> None:
    endpoint = replace(s3_server.endpoint(BUCKET), url="http://127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"store\.url"):
        ObjectStore(endpoint, "run", deadline_s=0.3).get("a")


@pytest.mark.slow
def test_everything_acknowledged_is_there_after_the_server_was_killed(
    s3_server: Server, object_store: ObjectStore
) -> None:
    sizes = (100, 40_000, 700_000)
    acknowledged: list[tuple[str, int]] = []
    going = threading.Event()
    going.set()

    def write(writer: int) -> None:
        number = 0
        while going.is_set():
            key, size = f"kill/{writer}-{number}", sizes[number % 3]
            object_store.put(key, bytes([writer]) * size)
            acknowledged.append((key, size))
            number += 1

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, writer) for writer in range(3)]
        try:
            wait_until(lambda: len(acknowledged) >= 12 or any(writer.done() for writer in writers), "the first objects")
            s3_server.kill()
            enough = len(acknowledged) + 6
            s3_server.start()  # the writers meanwhile try again: they notice nothing
            wait_until(lambda: len(acknowledged) >= enough or any(writer.done() for writer in writers), "more objects")
        finally:
            going.clear()
        for writer in writers:
            writer.result()
    listed = {stored.key: stored.size for stored in object_store.list("kill/")}
    assert {key: listed.get(key) for key, _ in acknowledged} == dict(acknowledged)
    for key, size in acknowledged[-3:]:
        assert len(object_store.get(key)) == size


# Large objects --------------------------------------------------------------------------------------------------------

PART = 5 << 20
"""The smallest part that servers take."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Data of three parts; parts are as small as can be."""
    monkeypatch.setattr(object_store_module, "MULTIPART_BYTES", PART)
    return random.Random(1).randbytes(2 * PART + 1000)


def watch(store: ObjectStore, operation: str, action: Callable[[int], None]) -> None:
    """Calls `action` with 1, 2, … before each request of the operation is sent."""
    count = iter(range(1, 1000))
    store._client.meta.events.register(f"before-call.s3.{operation}", lambda **_: action(next(count)))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_large_object_goes_in_parts_and_comes_back(
    object_store: ObjectStore, small_parts: bytes, kind: Callable[[bytes], bytes]
) -> None:
    sent: list[int] = []
    watch(object_store, "UploadPart", sent.append)
    assert object_store.put("large", kind(small_parts))
    assert sent == [1, 2, 3]
    assert object_store.get("large") == small_parts
    assert [stored.key for stored in object_store.list()] == ["large"]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_put(object_store: ObjectStore, kind: Callable[[bytes], bytes]) -> None:
    assert object_store.put("small", kind(b"data"))
    assert object_store.put("once", kind(b"data"), once=True)
    assert object_store.get("small") == object_store.get("once") == b"data"


def test_what_is_put_once_is_one_put_of_any_size(object_store: ObjectStore, small_parts: bytes) -> None:
    sent: list[int] = []
    watch(object_store, "CreateMultipartUpload", sent.append)
    assert object_store.put("once", small_parts, once=True)
    assert not object_store.put("once", b"another", once=True)
    assert (object_store.get("once"), sent) == (small_parts, [])


def test_an_upload_in_parts_that_fails_leaves_no_object_and_no_parts(
    object_store: ObjectStore, small_parts: bytes
) -> None:
    class Cut(Exception):
        """Nothing that is worth another try."""

    def fail(number: int) -> None:
        if number == 2:
            raise Cut

    object_store.put("before", b"1")
    watch(object_store, "UploadPart", fail)
    with pytest.raises(Cut):
        object_store.put("large", small_parts)
    assert [stored.key for stored in object_store.list()] == ["before"]
    uploads = object_store._client.list_multipart_uploads(Bucket=object_store.endpoint.bucket).get("Uploads", [])
    assert [upload["Key"] for upload in uploads if upload["Key"].startswith(object_store.prefix)] == []


@pytest.mark.slow
def test_an_upload_in_parts_survives_a_server_that_is_killed_in_the_middle(
    s3_server: Server, object_store: ObjectStore, small_parts: bytes
) -> None:
    """It forgets the parts that it had: the upload begins again, and until it ends there is no object."""
    seen: list[list[str]] = []

    def kill(number: int) -> None:
        if number == 3:
            s3_server.kill()
            s3_server.start()
            seen.append([stored.key for stored in ObjectStore(object_store.endpoint, object_store.prefix[:-1]).list()])

    watch(object_store, "UploadPart", kill)
    assert object_store.put("large", small_parts)
    assert seen == [[]]
    assert object_store.get("large") == small_parts


def test_an_object_fills_a_buffer(object_store: ObjectStore) -> None:
    data = bytes(range(256)) * 3000
    object_store.put("a", data)
    for size in (len(data), 1000):
        object_store.read_into("a", buffer := bytearray(size))
        assert buffer == data[:size]
    object_store.read_into("nowhere", bytearray())
    with pytest.raises(MissingObject):
        object_store.read_into("nowhere", bytearray(1))
    with pytest.raises(ShortObject):
        object_store.read_into("a", bytearray(len(data) + 1))
