"""A folder of a bucket is one whole export or, to whoever looks for its index, none; a bad address is one sentence."""

from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.connections.storage.object_store import INDEX, MissingObject, ObjectStore
from echo_queue.errors import EchoQueueError
from echo_queue.models.exported import FILE, Mark
from echo_queue.weights.destinations import bucket as module
from echo_queue.weights.destinations.bucket import BucketFolder, outdated
from tests.servers.ports import free_port
from tests.servers.s3 import BUCKET, Server
from tests.servers.user_environment import reach

pytestmark = pytest.mark.usefixtures("environment")
NOBODY: dict[str, object] = {"url": "http://127.0.0.1:9", "bucket": "other"}


@pytest.fixture
def environment(s3_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variables of a user whose own programs reach the server."""
    reach(s3_server, monkeypatch, tmp_path)


def config(**store: object) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "mine", "dir": "x"},
            "model": {"base": "x"},
            "store": store or NOBODY,
            "redis": {"url": "redis://x"},
        }
    )


def opened(store: ObjectStore, name: str) -> BucketFolder:
    return BucketFolder.of(f"s3://{BUCKET}/{store.prefix}{name}/", config())


def export(folder: Path, version: str, **files: bytes) -> Path:
    folder.mkdir()
    for name, data in {"model.safetensors": version.encode(), **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    Mark("mine", version, adapter=False).write(folder)
    return folder


def names(store: ObjectStore, name: str) -> set[str]:
    return {one.key.removeprefix(f"{name}/") for one in store.list(f"{name}/")}


def refused(address: str, settings: Config | None = None) -> str:
    with pytest.raises(EchoQueueError) as caught:
        BucketFolder.of(address, settings or config()).require()
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_a_folder_is_what_a_reader_of_its_index_gets(object_store: ObjectStore, tmp_path: Path) -> None:
    """… with all files of the new export and none of the one before."""
    there = opened(object_store, "models/best")
    there.require()
    assert names(object_store, "models/best") == set(), "the check leaves nothing"
    there.upload(export(tmp_path / "first", "1.1", **{"a.json": b"{}", "adapter/b.json": b"{}"}))
    assert names(object_store, "models/best") == {INDEX, FILE, "model.safetensors", "a.json", "adapter/b.json"}
    opened(object_store, "models/best/below").upload(export(tmp_path / "below", "1.0"))
    there.require()
    there.upload(export(tmp_path / "second", "1.2", **{"c.json": b"{}"}))
    own = {name for name in names(object_store, "models/best") if not name.startswith("below/")}
    assert own == {INDEX, FILE, "model.safetensors", "c.json"}
    for name, version in (("models/best", "1.2"), ("models/best/below", "1.0")):
        read = tmp_path / f"read {version}"
        object_store.download_folder(name, read)
        assert (read / "model.safetensors").read_text() == version


class Killed(BaseException):
    """The end of an upload in its midst."""


@pytest.mark.parametrize("spared", [0, 1, 2])
def test_an_upload_that_is_killed_leaves_nothing_that_a_reader_takes_for_whole(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spared: int
) -> None:
    """… whether or not another export was there, and the next upload takes its place."""
    there = opened(object_store, f"killed-{spared}")
    there.upload(export(tmp_path / "first", "1.1"))
    puts = 0

    def dying(self: ObjectStore, key: str, data: bytes, once: bool = False) -> bool:
        nonlocal puts
        puts += 1
        if puts > spared:
            raise Killed
        return put(self, key, data, once)

    put = ObjectStore.put
    second = export(tmp_path / "second", "1.2")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(ObjectStore, "put", dying)
        there.upload(second)
    with pytest.raises(MissingObject):
        object_store.download_folder(f"killed-{spared}", tmp_path / "read")
    there.require()
    there.upload(second)
    object_store.download_folder(f"killed-{spared}", tmp_path / "read")
    assert (tmp_path / "read" / "model.safetensors").read_text() == "1.2"


def test_objects_that_are_no_export_are_left_as_they_are(object_store: ObjectStore, tmp_path: Path) -> None:
    object_store.put("data/notes.txt", b"mine")
    told = refused(f"s3://{BUCKET}/{object_store.prefix}data")
    assert "data: has objects that are no exported model, and is left as it is\n    → name another prefix" in told
    with pytest.raises(EchoQueueError, match="has objects that are no exported model"):
        opened(object_store, "data").upload(export(tmp_path / "first", "1.1"))
    assert names(object_store, "data") == {"notes.txt"}


@pytest.mark.parametrize(
    "address", ["s3://", "s3://b", "s3://bucket", "s3://bucket/", "s3://bucket/a//b", "s3://bucket/../a"]
)
def test_an_address_that_names_no_folder_is_refused(address: str) -> None:
    assert refused(address) == f"{address}: names no folder of a bucket\n    → write s3://BUCKET/PREFIX"


def test_the_runs_own_objects_are_out_of_reach_and_its_bucket_has_its_keys(
    s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = s3_server.endpoint(BUCKET)
    own = config(url=endpoint.url, bucket=BUCKET)
    for prefix in ("mine", "mine/weights/x", "mine/exports"):
        told = refused(f"s3://{BUCKET}/{prefix}", own)
        assert f"lies among the objects that the run needs\n    → write s3://{BUCKET}/mine/exports/NAME" in told
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert endpoint.access_key and endpoint.secret_key
    monkeypatch.setenv("ECHO_QUEUE_LEARNER_STORE_ACCESS_KEY", endpoint.access_key)
    monkeypatch.setenv("ECHO_QUEUE_LEARNER_STORE_SECRET_KEY", endpoint.secret_key)
    BucketFolder.of(f"s3://{BUCKET}/mine/exports/best", own).require()
    BucketFolder.of(f"s3://{BUCKET}/mined/best", own).require()


def test_a_bucket_that_is_not_there_and_keys_that_are_wrong_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = refused("s3://no-such-bucket/a")
    assert "s3://no-such-bucket/a: " in told and "correct the bucket's name, or create it" in told
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "keys that may list, write and remove there" in refused(f"s3://{BUCKET}/a")
    monkeypatch.setattr(module, "FIRST_DEADLINE_S", 0.1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_port()}")
    assert "→ check the network; if its server is not Amazon's, set AWS_ENDPOINT_URL_S3" in refused(f"s3://{BUCKET}/a")


def test_what_belongs_to_an_export_below_is_not_outdated() -> None:
    there = {FILE, "a.json", "b/c.json", f"below/{FILE}", "below/a.json", "below/deep/a.json"}
    assert outdated(there, {FILE, "new.json"}) == {"a.json", "b/c.json"}
    assert outdated(set(), {FILE}) == set()
