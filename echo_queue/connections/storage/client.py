"""Makes the boto3 client of a store: what the configuration says is all that counts.

- Variables such as AWS_PROFILE and AWS_ENDPOINT_URL, and the files that they name, serve a user's other programs. Here
  they are read for keys alone, and only where the run has none of its own; AWS_CA_BUNDLE also names authorities.
- A server of this machine is never reached through a proxy.
- Keys that the store refuses are looked up again, since files that hold them may be renewed while a run goes on.
"""

import base64
import hashlib
import os
import threading
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore import exceptions as boto
from botocore.config import Config as BotoConfig
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.loaders import Loader, create_loader

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.errors import keys_fix
from echo_queue.connections.storage.proxies import is_loopback
from echo_queue.errors import Problem, ServiceError

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
CONNECTIONS = 16
LASTING = ("env",)
"""Where boto3 finds keys that stay what they are for as long as this process lives."""


class StoreKeychain(Credentials):
    """The keys with which requests are signed: those of the endpoint, else of boto3's own chain. Threads share it."""

    def __init__(self, endpoint: StoreEndpoint) -> None:
        """Raises `ServiceError` where boto3's chain cannot be followed."""
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._found = self._find()
        super().__init__("", "")

    def load_credentials(self) -> "StoreKeychain | None":
        """Returns itself if there are keys, as a client asks a provider of credentials."""
        return self if self._found else None

    def get_frozen_credentials(self) -> Any:
        return self._found.get_frozen_credentials() if self._found else None

    def changed_since(self, used: object) -> bool:
        """Looks for keys again. Returns whether they are others than those that were `used`."""
        with self._lock, suppress(ServiceError):
            if self.get_frozen_credentials() == used and self._may_be_renewed():
                self._found = self._find() or self._found
        return bool(self.get_frozen_credentials() != used)

    def _may_be_renewed(self) -> bool:
        """Returns whether another look may find other keys; those of roles renew themselves."""
        if self._endpoint.access_key is not None:
            return self._endpoint.keys_again is not None
        return not isinstance(self._found, RefreshableCredentials) and self._found.method not in LASTING

    def _find(self) -> Any:
        endpoint = self._endpoint
        if endpoint.keys_again and (keys := endpoint.keys_again()):
            return Credentials(keys.access_key, keys.secret_key)
        if endpoint.access_key is not None:
            return Credentials(endpoint.access_key, endpoint.secret_key or "")
        try:
            chain = botocore.session.Session()
            chain.set_config_variable("region", endpoint.region)
            return chain.get_credentials()
        except (boto.BotoCoreError, ValueError, OSError) as error:
            what = f"boto3 finds no keys for {endpoint.bucket!r} at {endpoint.url}: {error}"
            raise ServiceError(Problem("store.url", what, keys_fix(endpoint))) from None


def client(endpoint: StoreEndpoint, keychain: StoreKeychain) -> Any:
    """Returns the client of an endpoint. Raises `ServiceError` for an address that is none."""
    aws = (urlsplit(endpoint.url).hostname or "").endswith(("amazonaws.com", "amazonaws.com.cn"))
    settings = BotoConfig(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=CONNECTIONS,
        request_checksum_calculation=endpoint.checksums,
        response_checksum_validation=endpoint.checksums,
        retries={"total_max_attempts": 1},  # `ObjectStore` decides what is repeated
        s3={"addressing_style": "auto" if aws else "path"},
        proxies={} if is_loopback(endpoint.url) else None,  # None: those of the environment
    )
    session = _session()
    session.register_component("credential_provider", keychain)
    try:
        return boto3.Session(botocore_session=session).client(
            "s3", endpoint_url=endpoint.url, region_name=endpoint.region, config=settings
        )
    except ValueError as error:
        raise ServiceError(Problem("store.url", str(error), "write http://host:port or https://host")) from None


def add_md5(request: Any, **_: object) -> None:
    """Adds the header Content-MD5 to a request that is about to be signed."""
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


def _session() -> botocore.session.Session:
    """Returns a session that reads neither variables nor files."""
    session = botocore.session.Session()
    session.register_component("data_loader", _loader())
    store = session.get_component("config_store")
    for name, (_, _, default, _) in botocore.session.Session.SESSION_VARIABLES.items():
        store.set_config_variable(name, default)
    for name, value in (("config_file", os.devnull), ("credentials_file", os.devnull), ("s3", {})):
        store.set_config_variable(name, value)
    store.set_config_variable("ca_bundle", os.environ.get("AWS_CA_BUNDLE"))
    return session


@cache
def _loader() -> Loader:
    """Returns the descriptions of services that all sessions of this process share."""
    return create_loader()
