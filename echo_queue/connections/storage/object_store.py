"""The objects of a run on any S3 server: whole puts, ranges, listings, nothing overwritten by accident.

- Keys are relative to `{run}/` in the bucket. Failures that may pass (a restarting server, SlowDown, a cut
  connection) are retried with jitter until `deadline_s`; any other failure is one `ServiceError` with its fix.
- `put(once=True)` never replaces an object. Of two writers at the very same instant one wins where the server makes
  sure of it (`elects_one`: S3 does, rclone and Swift do not). Elsewhere both could write, and the learner's lineage,
  fenced in Redis, keeps them apart.
- Some servers, when killed, leave part of an object that they never acknowledged. A set of objects that readers find
  by listing is therefore written manifest last, and every manifest carries digests that readers check.
"""

import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import blake3
import boto3
import orjson
from boto3.s3.transfer import TransferConfig
from botocore import exceptions as boto

from echo_queue import failpoints
from echo_queue.connections.retries import FIRST_PAUSE_S, repeat
from echo_queue.connections.storage.client import StoreKeychain, add_md5, client
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.errors import (
    LOG_FIX,
    AlreadyThere,
    DeniedError,
    ExpiredKeysError,
    LargeObject,
    MissingObject,
    ShortBody,
    ShortObject,
    Unreachable,
    UnsupportedError,
    explain,
    wants_md5,
)
from echo_queue.connections.storage.outage_log import outage_log
from echo_queue.connections.storage.random_access import RandomAccess
from echo_queue.errors import Problem, ServiceError

DEADLINE_S = 60.0
RACES, RACERS = 3, 8
DELETE_BATCH = 1000  # S3's own limit
MULTIPART_BYTES = 64 << 20
STREAM_BYTES = 256 << 10
INDEX = "index.json"
MANIFEST = "manifest.json"
__all__ = ["INDEX", "LargeObject", "MissingObject", "ObjectStore", "ShortObject", "StoredObject", "Unreachable"]
GARBLED = (KeyError, ValueError)
"""Errors that the clients raise for an answer that was cut off in the middle of its headers."""
FAILURES = (boto.BotoCoreError, boto.ClientError, boto3.exceptions.Boto3Error, ShortBody, *GARBLED)
DOWNLOAD_ATTEMPTS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class StoredObject:
    """An object and its size in bytes."""

    key: str
    size: int


class ObjectStore:
    """The objects of run `run`; those of the whole bucket if it is empty. Several threads may share it; after a fork,
    make a new one."""

    def __init__(self, endpoint: StoreEndpoint, run: str, deadline_s: float = DEADLINE_S) -> None:
        self.endpoint = endpoint
        self.prefix = f"{run}/" if run else ""
        self.deadline_s = deadline_s
        self._keychain = StoreKeychain(endpoint)
        self._client = client(endpoint, self._keychain)
        self._sends_md5 = self._deletes_singly = False
        self._puts_once = endpoint.put_once
        self._outages = outage_log(f"the object store at {endpoint.url}")

    # Service ----------------------------------------------------------------------------------------------------------

    def check(self, deadline_s: float | None = None) -> None:
        """Raises `ServiceError` unless the bucket is there and our keys may list it."""
        listing = {"Bucket": self.endpoint.bucket, "Prefix": self.prefix, "MaxKeys": 1}
        self._persist("look at", "the bucket", lambda: self._client.list_objects_v2(**listing), deadline_s)

    def create_bucket(self) -> None:
        """Creates the bucket on an embedded server; an external bucket is never created silently."""

        def create() -> None:
            with suppress(self._client.exceptions.BucketAlreadyOwnedByYou, self._client.exceptions.BucketAlreadyExists):
                self._client.create_bucket(Bucket=self.endpoint.bucket)

        self._persist("create", "the bucket", create)

    @property
    def puts_once(self) -> bool:
        """True if the server heeds `If-None-Match: *`: known from the services, else tried with two tiny puts."""
        if self._puts_once is None:
            key = f".probe/{uuid.uuid4().hex}"
            try:
                first, second = (self._put_conditionally(key, b"put-once?") for _ in range(2))
            except UnsupportedError:  # it does not even take the header
                first = second = False
            self.delete([key])
            self._puts_once = first and not second
        return self._puts_once

    def elects_one(self) -> bool:
        """Tests that one of several simultaneous writers wins. Swift heeds the header, and yet several win."""
        keys = [f".probe/{uuid.uuid4().hex}" for _ in range(RACES)]
        with ThreadPoolExecutor(RACERS) as pool:
            wins = [sum(pool.map(self._put_conditionally, [key] * RACERS, [b"one?"] * RACERS)) for key in keys]
        self.delete(keys)
        return set(wins) == {1}

    # Objects ----------------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes | bytearray | memoryview, once: bool = False) -> bool:
        """Stores `data` whole. Returns False if `once` and there is another object already, which is left alone.

        An object with the same bytes is this writer's earlier try, whose answer was lost: that returns True. Without
        `once`, more than `MULTIPART_BYTES` go in parts, and no object is there before its last part is. A writer that
        is killed meanwhile leaves parts that no listing of objects shows (docs/operations.md).
        """
        if not once:
            self._persist("put", key, lambda: self._put(key, data))
            return True
        if not self.puts_once:
            return self._put_after_looking(key, data)
        give_up = time.monotonic() + self.deadline_s
        while not self._put_conditionally(key, data):
            with suppress(MissingObject):  # its writer is still writing, or has failed: then it is our turn again
                return self.get(key) == data
            if time.monotonic() > give_up:
                raise Unreachable(Problem("store.url", f"{key} neither exists nor can be created", LOG_FIX))
            time.sleep(random.uniform(0, FIRST_PAUSE_S))
        return True

    def get(self, key: str, most_bytes: int | None = None) -> bytes:
        """Returns the whole object.

        Raises `MissingObject`, or `LargeObject`, without reading it, if it has more than `most_bytes`.
        """
        return self._persist("get", key, lambda: self._read(key, most_bytes=most_bytes))

    def read_into(self, key: str, buffer: bytearray) -> None:
        """Fills `buffer` with the object's first bytes. Raises `MissingObject`, or `ShortObject` if it has fewer."""
        if buffer:
            self._persist("get", key, lambda: self._fill(key, buffer))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Returns bytes `start … start + length − 1`. Raises `MissingObject`, or `ShortObject` if it has fewer."""
        if length == 0:
            return b""
        return self._persist("get", key, lambda: self._read(key, (start, length)))

    def stream(self, key: str, start: int = 0, piece_bytes: int = STREAM_BYTES) -> Iterator[bytes]:
        """Yields the bytes from `start` to the end as they arrive, in pieces of `piece_bytes` (the last is shorter).

        Only the beginning is tried again; a later break is `Unreachable`, and the caller knows where to resume.
        Raises `MissingObject`, or `ShortObject` if the object ends before `start`.
        """
        wanted = {"Range": f"bytes={start}-"} if start else {}
        answer = self._persist("get", key, lambda: self._client.get_object(**self._at(key), **wanted))
        try:
            left = int(answer["ContentLength"])
            while left:
                piece = answer["Body"].read(min(piece_bytes, left))
                if not piece:
                    raise ShortBody(f"{left} bytes are missing")
                left -= len(piece)
                yield piece
        except FAILURES as error:
            raise explain(_cause(error), self.endpoint, key) from None
        finally:
            answer["Body"].close()

    def size(self, key: str, deadline_s: float | None = None) -> int | None:
        """Returns the object's size in bytes, or None if there is no such object. `deadline_s`: in place of the
        store's own."""
        try:
            head = partial(self._client.head_object, **self._at(key))
            return self._persist("head", key, lambda: int(head()["ContentLength"]), deadline_s)
        except MissingObject:
            return None

    def exists(self, key: str) -> bool:
        return self.size(key) is not None

    def list(self, prefix: str = "", page: int = 1000, *, delimiter: str = "") -> Iterator[StoredObject]:
        """Yields all objects whose key starts with `prefix`, in order of their keys; `page` keys per request.

        With a `delimiter` only those are found in whose keys none follows the prefix.
        """
        request: dict[str, Any] = {"Bucket": self.endpoint.bucket, "Prefix": self.prefix + prefix, "MaxKeys": page}
        if delimiter:
            request["Delimiter"] = delimiter
        while True:
            found, following = self._persist("list", prefix, lambda: self._page(request))
            yield from found
            if following is None:
                return
            request["ContinuationToken"] = following

    def delete(self, keys: Iterable[str], deadline_s: float | None = None) -> None:
        """Removes objects; a missing one is no error. `deadline_s`: of each batch, in place of the store's own."""
        doomed = list(keys)
        for start in range(0, len(doomed), DELETE_BATCH):
            batch = doomed[start : start + DELETE_BATCH]
            self._persist("delete", batch[0], partial(self._delete, batch), deadline_s)

    # Folders ----------------------------------------------------------------------------------------------------------

    def upload_folder(self, folder: Path, prefix: str) -> None:
        """Stores every file of `folder` under `prefix/`; the index with sizes and digests is written last."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in files]
        with ThreadPoolExecutor(4) as pool:
            digests = list(pool.map(lambda name: self._upload(folder / name, f"{prefix}/{name}"), names))
        index = {
            name: {"size": path.stat().st_size, "blake3": digest}
            for name, path, digest in zip(names, files, digests, strict=True)
        }
        self.put(f"{prefix}/{INDEX}", orjson.dumps(index, option=orjson.OPT_SORT_KEYS))

    def download_folder(self, prefix: str, folder: Path) -> None:
        """Fetches a folder that `upload_folder` stored, checked against its index; it appears whole or not at all.

        Raises `MissingObject` if no upload to `prefix` was ever finished.
        """
        index = digests(self.get(f"{prefix}/{INDEX}"), f"{prefix}/{INDEX}")
        temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
        try:
            temporary.mkdir(parents=True)
            with ThreadPoolExecutor(4) as pool:
                for done in [pool.submit(self._download, prefix, name, temporary, index[name]) for name in index]:
                    done.result()
            if folder.exists():
                failpoints.step("remove folder", lambda: shutil.rmtree(folder), folder)
            failpoints.step("rename folder", lambda: temporary.replace(folder), folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _upload(self, path: Path, key: str) -> str:
        if path.stat().st_size <= MULTIPART_BYTES:
            self.put(key, path.read_bytes())
        else:
            parts = TransferConfig(multipart_threshold=MULTIPART_BYTES, multipart_chunksize=MULTIPART_BYTES)
            bucket, name = self.endpoint.bucket, self.prefix + key
            self._persist("put", key, lambda: self._client.upload_file(str(path), bucket, name, Config=parts))
        return _digest(path)

    def _download(self, prefix: str, name: str, folder: Path, digest: str) -> None:
        key, path = f"{prefix}/{name}", (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            what = "its name leads out of the folder"
            raise ServiceError(Problem(key, what, "find out who wrote this prefix, and do not trust it"))
        path.parent.mkdir(parents=True, exist_ok=True)
        bucket, stored = self.endpoint.bucket, self.prefix + key
        for _ in range(DOWNLOAD_ATTEMPTS):  # the bytes may have been damaged on their way
            self._persist("get", key, lambda: self._client.download_file(bucket, stored, str(path)))
            if _digest(path) == digest:
                return
        raise ServiceError(Problem(key, "its bytes do not match the digest in its index", "upload it again"))

    # Requests ---------------------------------------------------------------------------------------------------------

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.endpoint.bucket, "Key": self.prefix + key}

    def _put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        if len(data) > MULTIPART_BYTES:
            self._put_in_parts(key, data)
        else:
            self._put_whole(key, data)

    def _put_whole(self, key: str, data: bytes | bytearray | memoryview, **condition: str) -> None:
        body = bytes(data) if isinstance(data, memoryview) else data  # boto3 takes no memoryview
        self._client.put_object(**self._at(key), Body=body, **condition)

    def _put_in_parts(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Sends one part after the other, so one copy of a part is in memory. A failed upload removes its parts."""
        parts = TransferConfig(
            multipart_threshold=MULTIPART_BYTES, multipart_chunksize=MULTIPART_BYTES, use_threads=False
        )
        with memoryview(data) as view, _Readable(view) as body:
            self._client.upload_fileobj(body, self.endpoint.bucket, self.prefix + key, Config=parts)

    def _put_after_looking(self, key: str, data: bytes | bytearray | memoryview) -> bool:
        """Puts `data` unless another object is there: the best that a server without put-once allows.

        An object that holds a beginning of `data` is a put that a crash cut off.
        """
        try:
            present = self.get(key)
        except MissingObject:
            present = b""
        if present != data and not bytes(data).startswith(present):
            return False
        if present != data:
            self._persist("put", key, lambda: self._put_whole(key, data))
        return True

    def _put_conditionally(self, key: str, data: Any) -> bool:
        """Returns False if the server says that the object exists (412). 409, a race in progress, is tried again."""
        try:
            self._persist("put once", key, lambda: self._put_whole(key, data, IfNoneMatch="*"))
        except AlreadyThere:
            return False
        return True

    def _read(self, key: str, part: tuple[int, int] | None = None, most_bytes: int | None = None) -> bytes:
        wanted = {"Range": f"bytes={part[0]}-{part[0] + part[1] - 1}"} if part else {}
        answer = self._client.get_object(**self._at(key), **wanted)
        if most_bytes is not None and int(answer["ContentLength"]) > most_bytes:
            answer["Body"].close()
            what = f"has {answer['ContentLength']} bytes, but its reader takes at most {most_bytes}"
            raise LargeObject(Problem(key, what, "find out who wrote it"))
        data: bytes = answer["Body"].read()
        if len(data) != int(answer["ContentLength"]):
            raise ShortBody(f"{len(data)} bytes arrived instead of {answer['ContentLength']}")
        if part and len(data) != part[1]:
            what = f"has {len(data)} bytes instead of {part[1]} from {part[0]} on"
            raise ShortObject(Problem(key, what, "its writer was cut off: write it again"))
        return data

    def _fill(self, key: str, buffer: bytearray) -> None:
        answer = self._client.get_object(**self._at(key), Range=f"bytes=0-{len(buffer) - 1}")
        filled = 0
        with memoryview(buffer) as view, closing(answer["Body"]) as body:
            while filled < len(buffer) and (piece := body.read(min(STREAM_BYTES, len(buffer) - filled))):
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
        if filled != int(answer["ContentLength"]):
            raise ShortBody(f"{filled} bytes arrived instead of {answer['ContentLength']}")
        if filled != len(buffer):
            what = f"has {filled} bytes instead of {len(buffer)}"
            raise ShortObject(Problem(key, what, "its writer was cut off: write it again"))

    def _page(self, request: dict[str, Any]) -> tuple[tuple[StoredObject, ...], str | None]:
        """Returns one page of a listing, and the token at which the next page begins."""
        answer = self._client.list_objects_v2(**request)
        # Without it the answer was cut off before its body: that is not an empty bucket.
        more = answer["IsTruncated"]
        entries = answer.get("Contents", ())
        found = tuple(StoredObject(entry["Key"].removeprefix(self.prefix), int(entry["Size"])) for entry in entries)
        return found, answer["NextContinuationToken"] if more else None

    def _delete(self, keys: Sequence[str]) -> None:
        if self._deletes_singly:
            for key in keys:
                self._client.delete_object(**self._at(key))
            return
        try:
            self._delete_together(keys)
        except boto.ClientError as error:
            if wants_md5(error) and not self._sends_md5:
                self._client.meta.events.register("before-sign.s3.DeleteObjects", add_md5)
                self._sends_md5 = True
            elif isinstance(explain(error, self.endpoint, keys[0]), UnsupportedError):
                self._deletes_singly = True
            else:
                raise
            self._delete(keys)

    def _delete_together(self, keys: Sequence[str]) -> None:
        names = [{"Key": self.prefix + key} for key in keys]
        answer = self._client.delete_objects(Bucket=self.endpoint.bucket, Delete={"Objects": names, "Quiet": True})
        refused = [error for error in answer.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
        if refused:
            raise boto.ClientError({"Error": refused[0]}, "DeleteObjects")

    def _persist(self, verb: str, what: str, request: Callable[[], T], deadline_s: float | None = None) -> T:
        """Repeats `request`, which must be idempotent, while its failure may pass. All tries are one failpoint step."""
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        tries = partial(repeat, lambda: self._try(what, request), deadline_s, self._outages)
        return failpoints.step(f"{verb} {kind_of(what)}", tries, what)

    def _try(self, what: str, request: Callable[[], T]) -> T:
        keys = None
        try:
            keys = self._keychain.get_frozen_credentials()
            return request()
        except FAILURES as error:
            failure = explain(_cause(error), self.endpoint, what)
        if isinstance(failure, DeniedError | ExpiredKeysError) and self._keychain.changed_since(keys):
            return self._try(what, request)
        try:
            raise failure
        finally:
            del failure  # else it and this frame would keep alive what the callers hold, such as weights


class _Readable(RandomAccess):
    """The bytes of `view` as a file that boto3 can read and rewind, without a copy of them all."""

    def __init__(self, view: memoryview) -> None:
        super().__init__(len(view))
        self._view = view

    def read_at(self, start: int, most: int) -> memoryview:
        return self._view[start : start + most]


def digests(index: bytes, where: str) -> dict[str, str]:
    """Returns the digest of each file in a folder's index. Raises `ServiceError` for bytes that are not an index."""
    try:
        files = orjson.loads(index)
        if all(isinstance(entry["blake3"], str) and name and "\0" not in name for name, entry in files.items()):
            return {name: entry["blake3"] for name, entry in files.items()}
    except (orjson.JSONDecodeError, AttributeError, LookupError, TypeError):
        pass
    raise ServiceError(Problem(where, "is not the index of a folder", "upload the folder again"))


def kind_of(key: str) -> str:
    """Returns the kind of object that a key names: its first folder, and the file's name where that is fixed."""
    folder, _, rest = key.partition("/")
    file = rest.rpartition("/")[2]
    return f"{folder}/{file}" if file in (INDEX, MANIFEST) else folder


def _cause(error: Exception) -> Exception:
    """Returns the error that one of boto3's transfers has wrapped, or `error` itself."""
    inner = error.__cause__ or error.__context__
    return inner if isinstance(error, boto3.exceptions.Boto3Error) and isinstance(inner, Exception) else error


def _digest(path: Path) -> str:
    return blake3.blake3().update_mmap(path).hexdigest()
