"""The environment of a user whose own programs reach an object store."""

from pathlib import Path

import pytest

from tests.servers.s3 import BUCKET, Server

VARIABLES = ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN")


def reach(server: Server, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Sets the variables by which other programs reach the server; `folder` has no files of AWS."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    endpoint = server.endpoint(BUCKET)
    assert endpoint.access_key and endpoint.secret_key
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", endpoint.secret_key)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
