"""Explains failures of the object store to the person who must act: configuration key, what is wrong, the fix."""

import os
import shutil

from botocore import exceptions as boto

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.proxies import proxy_variable
from echo_queue.errors import Problem, ServiceError

KEYS_FIX = (
    "set ECHO_QUEUE_STORE_ACCESS_KEY and ECHO_QUEUE_STORE_SECRET_KEY (or …_FILE; with a role's name, as in "
    "ECHO_QUEUE_LEARNER_STORE_ACCESS_KEY, for that role alone), or give boto3 a profile"
)
CHAIN_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
)
"""The variables by which boto3's own chain finds keys."""
THE_BUCKET = "the bucket"
"""What a request for no object asks for."""
LOG_FIX = "the store's log says more"
SIZE_FIX = "let the store, and every proxy before it, take requests of 64 MiB and, for a manifest, of any size"
FULL_BYTES = 16 << 20
"""An embedded store's disk with fewer free bytes than this counts as full."""


class Unreachable(ServiceError):
    """The store does not answer for now; a later try may succeed."""


class MissingObject(ServiceError):
    """There is no such object, or no longer."""


class DeniedError(ServiceError):
    """Our keys may not do that."""


class ExpiredKeysError(ServiceError):
    """Our keys were good for some time, which is over."""


class NoKeysError(ServiceError):
    """Nobody has given us keys."""


class MissingBucketError(ServiceError):
    """There is no such bucket."""


class WrongRegionError(ServiceError):
    """The bucket is in another region."""


class UnsupportedError(ServiceError):
    """The store knows no such request, or not all that it says."""


class AlreadyThere(ServiceError):
    """The condition of a put was not met."""


class ShortObject(ServiceError):
    """The object has fewer bytes than were asked for."""


class LargeObject(ServiceError):
    """The object has more bytes than its reader takes."""


class ShortBody(Exception):
    """Fewer bytes arrived than the answer announced."""


# Looked up by error code, else by HTTP status: kind, configuration key, what is wrong (`what` is filled in), the fix.
Meaning = tuple[type[ServiceError], str, str, str]
BY_CODE: dict[str, Meaning] = {
    "NoSuchBucket": (MissingBucketError, "store.bucket", "there is no such bucket", "create it, or name another"),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"),
        (WrongRegionError, "store.region", "the bucket is not in this region", "name the bucket's own region"),
    ),
    **dict.fromkeys(
        ("RequestTimeTooSkewed", "RequestExpired"),
        (
            ServiceError,
            "store.url",
            "the clock of this machine differs from the store's, which refuses {what}",
            "set this machine's clock (NTP), or the store's",
        ),
    ),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"),
        (
            ExpiredKeysError,
            "store.url",
            "the session of our keys has expired",
            "get new ones, or use an instance role, whose keys are renewed by themselves",
        ),
    ),
    "EntityTooLarge": (ServiceError, "store.url", "{what} is too large for one request", SIZE_FIX),
    "AccessDenied": (DeniedError, "store.url", "our keys are refused for {what}", KEYS_FIX),
    "InvalidBucketName": (
        ServiceError,
        "store.bucket",
        "is not a valid bucket name",
        "use 3 to 63 lower-case letters, digits and dashes",
    ),
    **dict.fromkeys(
        # NoSuchUpload: a server that was restarted has forgotten the parts that it had; the next try begins again.
        ("SlowDown", "RequestTimeout", "InternalError", "NoSuchUpload"),
        (Unreachable, "store.url", "{what} fails for now", LOG_FIX),
    ),
}
BY_STATUS: dict[int, Meaning] = {
    403: (DeniedError, "store.url", "our keys are refused for {what}", KEYS_FIX),
    404: (MissingObject, "store", "there is no object {what}", "find out whether it was pruned, or never written"),
    416: (ShortObject, "store", "{what} is shorter than the range", "its writer was cut off: write it again"),
    413: (ServiceError, "store.url", "{what} is too large for one request", SIZE_FIX),
    412: (AlreadyThere, "store", "{what} exists already", "nothing to do"),
    **dict.fromkeys((400, 405, 501), (UnsupportedError, "store.url", "{what} is refused", LOG_FIX)),
    407: (ServiceError, "store.url", "the proxy refuses {what}", "give it the user and password of the proxy"),
    **dict.fromkeys((409, 429, 500, 502, 503, 504), (Unreachable, "store.url", "{what} fails for now", LOG_FIX)),
}
BUCKET: Meaning = (
    ServiceError,
    "store.url",
    "there is no list of a bucket at this address",
    "leave out what follows host and port: the bucket's name is in store.bucket",
)
REFUSED: Meaning = (ServiceError, "store.url", "{what} is refused", LOG_FIX)


def explain(error: Exception, endpoint: StoreEndpoint, what: str) -> ServiceError:
    """Returns the error to raise for `error`, which a request for `what` met (as a rule, an object's key)."""
    proxy = proxy_variable(endpoint.url)
    bucket = f"{endpoint.bucket!r} at {endpoint.url}" + (f" through the proxy of {proxy}" if proxy else "")
    if isinstance(error, boto.ClientError):
        if _is_full(error, endpoint):
            fix = f"free space on the disk of {endpoint.directory or 'the store, or raise its quota'}"
            return ServiceError(Problem("store.url", f"{bucket} is full: {what} cannot be written", fix))
        kind, where, meaning, fix = BY_CODE.get(_code(error)) or BY_STATUS.get(_status(error), REFUSED)
        if kind is MissingObject and what == THE_BUCKET:
            kind, where, meaning, fix = BUCKET
        if kind is DeniedError:
            fix = keys_fix(endpoint)
        answer = f"{_code(error)} {error.response.get('Error', {}).get('Message', '')}".strip()
        return kind(Problem(where, f"{bucket}: {meaning.format(what=what)} ({answer})", fix))
    if isinstance(error, boto.SSLError):
        what_failed = f"{bucket}: the TLS connection failed: {error}"
        return ServiceError(Problem("store.url", what_failed, "check the server's name, or set AWS_CA_BUNDLE"))
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return NoKeysError(Problem("store.url", f"{bucket}: no keys are set", KEYS_FIX))
    said, fix = f"no answer for {what}: {error}", "start the server, or correct the address"
    if proxy:
        fix = f"correct {proxy}, or put the store's host into NO_PROXY; {fix}"
    if isinstance(error, KeyError | ValueError):
        said, fix = f"garbled answer for {what}: {error!r}", LOG_FIX
    return Unreachable(Problem("store.url", f"{bucket}: {said}", fix))


def keys_fix(endpoint: StoreEndpoint) -> str:
    """Returns what to do about keys of this endpoint; it names the variables from which boto3 may have them."""
    given = [] if endpoint.access_key is not None else [name for name in CHAIN_VARIABLES if name in os.environ]
    return f"correct or unset {', '.join(given)}, or {KEYS_FIX}" if given else KEYS_FIX


def wants_md5(error: boto.ClientError) -> bool:
    """Returns whether the store asks for the header Content-MD5. Servers have several codes for that."""
    said = error.response.get("Error", {}).get("Message", "")
    return "md5" in f"{_code(error)} {said}".lower() and _status(error) == 400


def _is_full(error: boto.ClientError, endpoint: StoreEndpoint) -> bool:
    """Says whether the store is full. Servers have no common answer for it; for an embedded one the disk is checked."""
    if _status(error) == 507 or any(word in _code(error) for word in ("Quota", "Full", "InsufficientStorage")):
        return True
    directory = endpoint.directory
    wrote = error.operation_name in ("PutObject", "CreateBucket", "UploadPart", "CompleteMultipartUpload")
    if not wrote or _status(error) != 500 or directory is None or not directory.exists():
        return False
    return shutil.disk_usage(directory).free < FULL_BYTES


def _status(error: boto.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
