"""The address of an object store, and the keys with which a role connects to it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from echo_queue.connections.secrets import StoreKeys

SCHEME = "s3://"
"""The beginning of a bucket's address, `s3://BUCKET/KEY`."""


@dataclass(frozen=True)
class StoreEndpoint:
    """A bucket on an S3 server. Keys that are None come from boto3's own chain; `put_once` is None until it was probed.

    `directory` is the folder in which an embedded server keeps its objects; a full disk is recognised by it.
    `keys_again` looks the keys up anew, for the case that the store refuses those that it has.
    """

    url: str
    bucket: str
    region: str = "us-east-1"
    access_key: str | None = None
    secret_key: str | None = None
    checksums: Literal["when_required", "when_supported"] = "when_required"
    put_once: bool | None = None
    directory: Path | None = None
    keys_again: Callable[[], StoreKeys | None] | None = field(default=None, compare=False, repr=False)
