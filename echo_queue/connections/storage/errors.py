"""Explains failures of the object store to the person who must act: configuration key, what is wrong, the fix."""

import shutil

from botocore import exceptions as boto

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.errors import Problem, ServiceError

KEYS_FIX = (
    "set ECHO_QUEUE_STORE_ACCESS_KEY and ECHO_QUEUE_STORE_SECRET_KEY (or …_FILE; with a role's name, as in "
    "ECHO_QUEUE_LEARNER_STORE_ACCESS_KEY, for that role alone), or give boto3 a profile"
)
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
    "NoSuchBucket": (ServiceError, "store.bucket", "there is no such bucket", "create it, or name another"),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"),
        (ServiceError, "store.region", "the bucket is not in this region", "name the bucket's own region"),
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
    **dict.fromkeys((409, 429, 500, 502, 503, 504), (Unreachable, "store.url", "{what} fails for now", LOG_FIX)),
}
REFUSED: Meaning = (ServiceError, "store.url", "{what} is refused", LOG_FIX)


def explain(error: Exception, endpoint: StoreEndpoint, what: str) -> ServiceError:
    """Returns the error to raise for `error`, which a request for `what` met (as a rule, an object's key)."""
    bucket = f"{endpoint.bucket!r} at {endpoint.url}"
    if isinstance(error, boto.ClientError):
        if _is_full(error, endpoint):
            fix = f"free space on the disk of {endpoint.directory or 'the store, or raise its quota'}"
            return ServiceError(Problem("store.url", f"{bucket} is full: {what} cannot be written", fix))
        kind, where, meaning, fix = BY_CODE.get(_code(error)) or BY_STATUS.get(_status(error), REFUSED)
        answer = f"{_code(error)} {error.response.get('Error', {}).get('Message', '')}".strip()
        return kind(Problem(where, f"{bucket}: {meaning.format(what=what)} ({answer})", fix))
    if isinstance(error, boto.SSLError):
        what_failed = f"{bucket}: the TLS connection failed: {error}"
        return ServiceError(Problem("store.url", what_failed, "check the server's name, or set AWS_CA_BUNDLE"))
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return ServiceError(Problem("store.url", f"{bucket}: no keys are set", KEYS_FIX))
    if isinstance(error, KeyError | ValueError):
        return Unreachable(Problem("store.url", f"{bucket}: garbled answer for {what}: {error!r}", LOG_FIX))
    return Unreachable(
        Problem("store.url", f"{bucket}: no answer for {what}: {error}", "start the server, or correct the address")
    )


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
