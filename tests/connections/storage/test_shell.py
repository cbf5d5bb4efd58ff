"""What a user's shell holds for other programs changes nothing about the run's store, or is told by its name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.connections.endpoints import store_endpoint
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.errors import DeniedError
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import Problem, ServiceError
from echo_queue.launch.servers.s3_server import S3Server
from tests.connections.storage.test_other_servers import error
from tests.http_server import serving
from tests.servers.s3 import BUCKET, Server

Configure = Callable[..., Config]
NOBODY = "http://127.0.0.1:9"
OF_AWS = {
    **dict.fromkeys(("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "nope"),
    **dict.fromkeys(("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), NOBODY),
    **dict.fromkeys(("AWS_DEFAULT_REGION", "AWS_REGION"), "no where"),
    **dict.fromkeys(("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_S3_USE_ARN_REGION"), "true"),
    **dict.fromkeys(("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"), "nope"),
    **dict.fromkeys(("AWS_MAX_ATTEMPTS", "AWS_METADATA_SERVICE_TIMEOUT"), "nope"),
    **dict.fromkeys(("AWS_RETRY_MODE", "AWS_DEFAULTS_MODE", "AWS_AUTH_SCHEME_PREFERENCE"), "nope"),
    **dict.fromkeys(("AWS_ACCOUNT_ID_ENDPOINT_MODE", "AWS_SIGV4A_SIGNING_REGION_SET"), "required"),
    **dict.fromkeys(("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "AWS_DATA_PATH"), "/none"),
}
PROXIES = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), NOBODY)


def problem_of(endpoint: StoreEndpoint) -> Problem:
    with pytest.raises(ServiceError) as raised:
        ObjectStore(endpoint, "shell", 0).check(0)
    (problem,) = raised.value.problems
    return problem


def test_a_store_with_an_address_and_keys_is_the_same_in_any_shell(
    s3_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "config"
    broken.write_text("[default\n")
    files = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), str(broken))
    for name, value in {**OF_AWS, **PROXIES, **files}.items():
        monkeypatch.setenv(name, value)
    store = ObjectStore(s3_server.endpoint(BUCKET), "shell", 5.0)
    store.put("one", b"1")
    assert store.get("one") == b"1"
    store.delete(["one"])


@pytest.mark.parametrize("name", ["AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ACCESS_KEY_ID"])
def test_keys_of_botos_own_chain_that_do_not_work_are_told_with_the_variable(
    s3_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("[default\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv(name, str(broken) if name.endswith("FILE") else "nope")
    if name == "AWS_ACCESS_KEY_ID":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nope")
    problem = problem_of(replace(s3_server.endpoint(BUCKET), access_key=None, secret_key=None))
    assert name in problem.fix and "ECHO_QUEUE_STORE_ACCESS_KEY" in problem.fix


def test_keys_of_botos_own_chain_serve_an_address_that_no_variable_changes(
    s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = s3_server.endpoint(BUCKET)
    for name, value in (OF_AWS | {"AWS_METADATA_SERVICE_TIMEOUT": "1"}).items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key or "")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", endpoint.secret_key or "")
    ObjectStore(replace(endpoint, access_key=None, secret_key=None), "shell", 0).check(0)


def test_a_proxy_that_does_not_answer_is_named_where_the_store_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://user:hunter2@127.0.0.1:9")
    endpoint = StoreEndpoint("http://store.invalid", BUCKET, access_key="a", secret_key="b")
    problem = problem_of(endpoint)
    assert "through the proxy of HTTP_PROXY" in problem.what and "hunter2" not in str(problem)
    assert "correct HTTP_PROXY, or put the store's host into NO_PROXY" in problem.fix
    monkeypatch.setenv("NO_PROXY", "store.invalid")
    assert "proxy" not in str(problem_of(endpoint)).lower()


@pytest.fixture
def renewed(tmp_path: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> Callable[[], StoreEndpoint]:
    """Returns what writes the keys' files, and gives the endpoint of a run whose keys are in them."""
    for half in ("ACCESS", "SECRET"):
        monkeypatch.setenv(f"ECHO_QUEUE_STORE_{half}_KEY_FILE", str(tmp_path / half))
    return lambda: store_endpoint(configure(store={"url": "http://127.0.0.1:9", "bucket": BUCKET}))


def write_keys(folder: Path, keys: StoreKeys) -> None:
    (folder / "ACCESS").write_text(keys.access_key)
    (folder / "SECRET").write_text(keys.secret_key)


def test_the_embedded_store_takes_no_options_from_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"READ_ONLY": "true", "DRY_RUN": "true", "EXCLUDE": "*", "BASEURL": "/elsewhere", "CONFIG": "/none"}
    for name, value in options.items():
        monkeypatch.setenv(f"RCLONE_{name}", value)
    server = S3Server(tmp_path / "s3", StoreKeys("KEYKEYKEYKEYKEYKEYKE", "s" * 40))
    server.start()
    try:
        store = ObjectStore(server.endpoint(BUCKET), "options", 5.0)
        store.create_bucket()
        store.put("one", b"1")
        assert [stored.key for stored in store.list()] == ["one"]
    finally:
        server.stop()


def test_keys_that_are_renewed_in_their_files_while_a_run_goes_on_are_taken_up(
    tmp_path: Path, renewed: Callable[[], StoreEndpoint]
) -> None:
    old, new = (StoreKeys(f"{name}KEYKEYKEYKEYKEYKEY", "s" * 40) for name in ("OLD", "NEW"))
    write_keys(tmp_path, old)
    server = S3Server(tmp_path / "s3", old)
    server.start()
    try:
        store = ObjectStore(replace(renewed(), url=server.url), "renewed", 10.0)
        store.create_bucket()
        server.stop()
        server = S3Server(tmp_path / "s3", new)
        server.start()
        with pytest.raises(DeniedError):
            store.put("one", b"1")
        write_keys(tmp_path, new)
        store.put("one", b"1")
        assert store.get("one") == b"1"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("status", "code", "where", "what", "fix"),
    [
        (403, "RequestTimeTooSkewed", "store.url", "clock", "NTP"),
        (400, "ExpiredToken", "store.url", "has expired", "instance role"),
        (404, "NoSuchKey", "store.url", "no list of a bucket", "leave out"),
        (404, "NoSuchBucket", "store.bucket", "no such bucket", "create it"),
        (407, "Denied", "store.url", "the proxy refuses", "password"),
    ],
)
def test_what_a_store_answers_is_told_with_what_to_do(status: int, code: str, where: str, what: str, fix: str) -> None:
    with serving(lambda _: error(status, code)) as url:
        problem = problem_of(StoreEndpoint(url, BUCKET, access_key="a", secret_key="b"))
    assert problem.where == where and what in problem.what and fix in problem.fix
