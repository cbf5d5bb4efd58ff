"""Objects of a bucket are the same prompts as files, read in ranges; what is wrong with one is one sentence."""

import io
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.named_bucket import by_environment
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import PromptError, ServiceError
from echo_queue.records import PromptRow
from echo_queue.submission import submit
from echo_queue.submission.sources.files import bucket as buckets
from echo_queue.submission.sources.files.bucket import MOST_RANGE_BYTES, Bucket, Ranges, S3Object, objects_of
from echo_queue.submission.sources.files.stored import READ_BUFFER_BYTES
from echo_queue.submission.sources.registry import absolute, open_source
from tests.servers.ports import free_port
from tests.servers.s3 import BUCKET, Server
from tests.servers.user_environment import VARIABLES, reach
from tests.submission.conftest import SubmissionHarness
from tests.submission.test_files import PACKS, ROWS, json_lines, scanned, written

EXPECTED = [PromptRow(row["prompt"], {"answer": row["answer"]}) for row in ROWS]


@pytest.fixture
def environment(s3_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The variables of a user whose own programs reach the server."""
    reach(s3_server, monkeypatch, tmp_path)
    return monkeypatch


def put(store: ObjectStore, name: str, data: bytes) -> str:
    """Stores an object. Returns its address."""
    store.put(name, data)
    return f"s3://{BUCKET}/{store.prefix}{name}"


def refused(name: str, store: StoreEndpoint | None = None) -> str:
    with pytest.raises(PromptError) as caught:
        list(open_source(name, store=store).scan(10))
    return str(caught.value)


def chunk_by_chunk(name: str, size: int, store: StoreEndpoint | None = None) -> list[PromptRow]:
    """Returns the rows that other processes read, given only the scanned chunks."""
    chunks = [chunk for chunk, _ in open_source(name, store=store).scan(size)]
    return [row for chunk in chunks for row in open_source(name, store=store).read(chunk)]


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.jsonl.gz", "a.csv.zst"])
def test_an_object_of_any_form_is_the_set_that_its_file_is(
    object_store: ObjectStore, tmp_path: Path, name: str
) -> None:
    _, form, *pack = name.split(".")
    data = PACKS[f".{pack[0]}" if pack else ""](written(tmp_path, form))
    (tmp_path / name).write_bytes(data)
    address = put(object_store, f"größe & {{x}}/{name}", data)
    assert chunk_by_chunk(address, 4) == EXPECTED
    assert scanned(address, 10) == scanned(str(tmp_path / name), 10)
    assert open_source(address).name == absolute(address) == address


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_prefix_is_a_folder_in_the_order_of_the_names(object_store: ObjectStore, tmp_path: Path) -> None:
    for number, suffix in ((2, ""), (0, ".gz"), (1, "")):
        part = PACKS[suffix](json_lines(ROWS[number * 8 : (number + 1) * 8]))
        put(object_store, f"parts.jsonl/part-{number}.jsonl{suffix}", part)
    for other in ("_SUCCESS", ".part.jsonl", "below/part-3.jsonl", "README.md"):
        put(object_store, f"parts.jsonl/{other}", b"no prompts")
    address = f"s3://{BUCKET}/{object_store.prefix}parts.jsonl/"
    assert [row.columns["answer"] for row in chunk_by_chunk(address, 5)] == [str(number) for number in range(24)]
    chunks = [chunk for chunk, _ in open_source(address).scan(5)]
    assert open_source(address).location(chunks[3], 1) == f"{address}part-1.jsonl:7"
    object_store.delete(["parts.jsonl/part-1.jsonl"])
    with pytest.raises(PromptError, match=r"part-1\.jsonl: is gone: the source has changed"):
        open_source(address).read(chunks[3])
    put(object_store, "parts.jsonl/other.csv", b"prompt\n")
    assert "has files of several forms: other.csv, part-0.jsonl.gz" in refused(address)
    assert "has no file of prompts" in refused(f"s3://{BUCKET}/{object_store.prefix}none")


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_an_object_that_changed_is_refused_and_never_admitted_half_old(object_store: ObjectStore) -> None:
    address = put(object_store, "a.jsonl", json_lines(ROWS))
    chunks = [chunk for chunk, _ in open_source(address).scan(10)]
    put(object_store, "a.jsonl", json_lines(ROWS[:12] + ROWS[:13]))
    with pytest.raises(PromptError, match=r"rows 11 to 20 are not those that were submitted: the file has changed"):
        open_source(address).read(chunks[1])
    opened = open_source(address)
    put(object_store, "a.jsonl", json_lines(ROWS[:3]))
    with pytest.raises(PromptError, match="it has changed while it was read"):
        list(opened.scan(10))


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Returns a list to which each range that is asked of a store adds itself."""
    ranges, get = list[tuple[int, int]](), ObjectStore.get_range

    def get_range(store: ObjectStore, key: str, start: int, length: int) -> bytes:
        ranges.append((start, length))
        return get(store, key, start, length)

    monkeypatch.setattr(ObjectStore, "get_range", get_range)
    return ranges


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_chunk_is_read_by_its_range_alone_and_a_scan_in_few_ranges(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"prompt": "long " * 200, "answer": "1"}
    data = json_lines([row] * 30_000)
    assert len(data) > 25 * READ_BUFFER_BYTES
    address = put(object_store, "a.jsonl", data)
    ranges = noted(monkeypatch)
    chunks = [chunk for chunk, _ in open_source(address).scan(500)]
    assert sum(length for _, length in ranges) == len(data), "each byte once"
    assert max(length for _, length in ranges) == MOST_RANGE_BYTES and len(ranges) < 8, "and not all in memory"
    ranges.clear()
    assert len(open_source(address).read(chunks[40])) == 500
    assert ranges == [(len(data) * 40 // 60, READ_BUFFER_BYTES)]


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_a_range_at_any_place_has_the_bytes_of_the_object(s3_server: Server, object_store: ObjectStore) -> None:
    draw = random.Random(1)
    data = draw.randbytes(3_000_000)
    put(object_store, "bytes", data)
    key = f"{object_store.prefix}bytes"
    stored = S3Object(Bucket(ObjectStore(s3_server.endpoint(BUCKET), ""), own=False), key, len(data))
    raw, buffered = Ranges(stored), stored.open()
    for _ in range(40):
        start, length = draw.randrange(len(data) + 10), draw.choice((1, 1000, 100_000, 2_500_000))
        assert buffered.seek(start) == start
        assert buffered.read(length) == data[start : start + length]
        back = draw.randrange(1, len(data))
        assert raw.seek(-back, io.SEEK_END) == len(data) - back
        assert data[-back:].startswith(raw.read(1000) or b"-")


@pytest.mark.slow
def test_what_is_not_there_or_not_ours_is_one_sentence(
    environment: pytest.MonkeyPatch, s3_server: Server, object_store: ObjectStore
) -> None:
    address = put(object_store, "a.jsonl", json_lines(ROWS))
    missing = f"s3://{BUCKET}/{object_store.prefix}none.jsonl"
    assert f"{missing}: there is no such object" in refused(missing)
    for address_of_none in ("s3://no-such-bucket/a.jsonl", "s3://no-such-bucket/parts/"):
        said = refused(address_of_none)
        assert said.startswith(f"{address_of_none}: ") and "there is no such bucket" in said
        assert "correct the bucket's name; if its server is not Amazon's, set AWS_ENDPOINT_URL_S3" in said
    assert "'s3:///a.jsonl' names no bucket" in refused("s3:///a.jsonl")
    assert "packed Parquet" in refused(f"s3://{BUCKET}/a.parquet.gz")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    for name in (address, f"s3://{BUCKET}/{object_store.prefix}"):
        said = refused(name)
        assert said.startswith(f"{name}: ") and "our keys are refused" in said
        assert "→ set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in said
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "no keys are set" in refused(address)
    environment.setenv("AWS_PROFILE", "nobody")
    assert "cannot be opened: The config profile (nobody) could not be found" in refused(address)
    environment.delenv("AWS_PROFILE")
    environment.setenv("AWS_ENDPOINT_URL_S3", "nowhere")
    assert "Invalid endpoint: nowhere" in refused(address)


@pytest.mark.slow
def test_a_profile_may_name_the_server_and_the_keys(
    environment: pytest.MonkeyPatch, s3_server: Server, object_store: ObjectStore, tmp_path: Path
) -> None:
    address = put(object_store, "a.jsonl", json_lines(ROWS))
    endpoint = s3_server.endpoint(BUCKET)
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.delenv(name)
    keys = f"aws_access_key_id = {endpoint.access_key}\naws_secret_access_key = {endpoint.secret_key}\n"
    (tmp_path / "config").write_text(f"[profile mine]\nregion = us-east-1\nendpoint_url = {endpoint.url}\n{keys}")
    environment.setenv("AWS_PROFILE", "mine")
    assert chunk_by_chunk(address, 10) == EXPECTED


@pytest.mark.slow
def test_the_runs_own_bucket_is_read_with_the_keys_of_the_store(
    environment: pytest.MonkeyPatch, s3_server: Server, object_store: ObjectStore
) -> None:
    address, own = put(object_store, "a.jsonl", json_lines(ROWS)), s3_server.endpoint(BUCKET)
    environment.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    environment.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    assert chunk_by_chunk(address, 10, own) == EXPECTED
    said = refused(address, replace(own, secret_key="hunter2"))
    assert "our keys are refused" in said and "ECHO_QUEUE_STORE_ACCESS_KEY" in said


@pytest.mark.slow
def test_celery_workers_read_their_chunks_from_the_bucket(
    harness: SubmissionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, str]] = [{"prompt": f"prompt {index}", "answer": str(index)} for index in range(450)]
    endpoint = harness.store.endpoint
    ObjectStore(endpoint, "data").put("rows.jsonl", json_lines(rows))
    other = ObjectStore(replace(endpoint, bucket="elsewhere"), "")
    other.create_bucket()
    other.put("rows.jsonl", json_lines(rows))
    for name, value in (("ENDPOINT_URL_S3", endpoint.url), ("ACCESS_KEY_ID", endpoint.access_key),
                        ("SECRET_ACCESS_KEY", endpoint.secret_key)):  # fmt: skip
        harness.environ[f"AWS_{name}"] = value or ""
    harness.celery()
    sources = {"own": f"s3://{endpoint.bucket}/data/rows.jsonl", "other": "s3://elsewhere/"}
    for name, source in sources.items():
        if name == "other":
            for variable, value in harness.environ.items():
                monkeypatch.setenv(variable, value)
        sent = submit(harness.config(prompts__set=name, prompts__source=source))
        assert (sent.prompts, sent.chunks) == (450, 5)
        assert harness.rows() == {
            (0, at): PromptRow(row["prompt"], {"answer": row["answer"]}) for at, row in enumerate(rows)
        }


def test_a_server_that_is_away_is_no_fault_of_the_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FIRST_DEADLINE_S", 0.1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    addresses: Sequence[str] = ("s3://mine/a.jsonl", "s3://mine/parts")
    for address in addresses:
        with pytest.raises(ServiceError, match=f"{address}: .*no answer for .*\n.*check the network"):
            objects_of(address, None)


def test_the_server_is_amazons_in_the_users_region_where_nobody_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (*VARIABLES, "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert by_environment("b") == StoreEndpoint("https://s3.us-east-1.amazonaws.com", "b", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert by_environment("b") == StoreEndpoint("https://s3.eu-west-1.amazonaws.com", "b", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://all")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3")
    assert by_environment("b").url == "https://s3"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert by_environment("b").url == "https://s3.eu-west-1.amazonaws.com"
