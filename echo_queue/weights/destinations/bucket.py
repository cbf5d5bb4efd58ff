"""A model's folder as objects of a bucket: `s3://BUCKET/PREFIX`, complete or not there for whoever reads as told here.

- `index.json` names every other object with its size and its BLAKE3 digest. It is stored after all of them, and removed
  before any of them changes: a reader that finds it, and whose files have these digests, has one whole export.
- Only an export of ours is replaced: a prefix with an `export.json`, which is stored first, or one with no objects.
- The run's own bucket is opened with its keys, any other one as the user's other programs open it.
"""

import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from botocore import exceptions as boto

from echo_queue.config import Config
from echo_queue.connections.endpoints import own_store
from echo_queue.connections.storage.endpoint import SCHEME
from echo_queue.connections.storage.errors import (
    DeniedError,
    ExpiredKeysError,
    MissingBucketError,
    NoKeysError,
    Unreachable,
    WrongRegionError,
)
from echo_queue.connections.storage.named_bucket import by_environment
from echo_queue.connections.storage.object_store import INDEX, ObjectStore
from echo_queue.errors import ConfigError, Problem, ServiceError
from echo_queue.models.exported import EXPORTS, FILE

FIRST_DEADLINE_S = 5.0
"""How long a server may be away before anything is built; for an upload the store's own deadline applies."""
BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
FORM = f"write {SCHEME}BUCKET/PREFIX"
KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, to keys that may list, write and remove there"
PROBE = ".probe-"
"""How the name begins of the object by which `require` finds out whether our keys may write."""
SERVER = "if its server is not Amazon's, set AWS_ENDPOINT_URL_S3"
FIXES: dict[type[ServiceError], str] = {
    MissingBucketError: f"correct the bucket's name, or create it; {SERVER}",
    WrongRegionError: "set AWS_REGION to the bucket's own region",
    DeniedError: KEYS,
    ExpiredKeysError: KEYS,
    NoKeysError: KEYS,
    Unreachable: f"check the network; {SERVER}",
}
"""What to do about an error in a bucket that is not the run's own."""


@dataclass(frozen=True)
class BucketFolder:
    """The objects of a bucket whose keys begin with `prefix` and a slash. `own`: it is the run's own bucket."""

    address: str
    store: ObjectStore
    prefix: str
    own: bool

    @classmethod
    def of(cls, address: str, config: Config) -> "BucketFolder":
        """Returns the folder at `s3://BUCKET/PREFIX`. Nothing is asked yet.

        Raises `ConfigError` for an address that is none, or that lies among the run's own objects.
        """
        bucket, _, prefix = address.removeprefix(SCHEME).partition("/")
        prefix = prefix.removesuffix("/")
        if not BUCKET.fullmatch(bucket) or {"", ".", ".."} & set(prefix.split("/")):
            raise ConfigError(Problem(address, "names no folder of a bucket", FORM))
        ours = own_store(config, "learner")
        own = ours is not None and ours.bucket == bucket
        theirs = f"{config.run.name}/"
        if own and f"{prefix}/".startswith(theirs) and not prefix.startswith(f"{theirs}{EXPORTS}/"):
            fix = f"write {SCHEME}{bucket}/{theirs}{EXPORTS}/NAME"
            raise ConfigError(Problem(address, "lies among the objects that the run needs", fix))
        try:
            store = ObjectStore(ours if own and ours else by_environment(bucket), "")
        except (boto.BotoCoreError, ValueError) as error:
            fix = "correct AWS_PROFILE and its files"
            raise ConfigError(Problem(address, f"cannot be opened: {error}", fix)) from None
        return cls(address, store, prefix, own)

    def require(self) -> None:
        """Raises `ServiceError` unless our keys may write here, and `ConfigError` for objects that are no export."""
        with self._told():
            self.store.check(FIRST_DEADLINE_S)
            self._refuse_foreign(self._keys())
            probe = f"{self.prefix}/{PROBE}{uuid.uuid4().hex}"
            self.store.put(probe, b"may we write?")
            self.store.delete([probe])

    def upload(self, folder: Path) -> None:
        """Stores an exported folder in place of what is there, the index last. Raises as `require` does."""
        with self._told():
            there = self._keys()
            self._refuse_foreign(there)
            self.store.delete([f"{self.prefix}/{INDEX}"])
            self.store.put(f"{self.prefix}/{FILE}", (folder / FILE).read_bytes())
            files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
            if old := outdated(there, files):
                self.store.delete([f"{self.prefix}/{name}" for name in sorted(old)])
            self.store.upload_folder(folder, self.prefix)

    def _keys(self) -> set[str]:
        """Returns what is there, without the prefix. Some tools store a folder as an empty object."""
        found = (one.key.removeprefix(f"{self.prefix}/") for one in self.store.list(f"{self.prefix}/"))
        return {key for key in found if key}

    def _refuse_foreign(self, there: Collection[str]) -> None:
        if FILE not in there and any(not key.startswith(PROBE) for key in there):
            what = "has objects that are no exported model, and is left as it is"
            raise ConfigError(Problem(self.address, what, "name another prefix"))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Makes an error of the store one that names the address."""
        try:
            yield
        except ServiceError as error:
            (problem,) = error.problems[:1]
            fix = "" if self.own else FIXES.get(type(error), "")
            raise type(error)(Problem(self.address, problem.what, fix or problem.fix)) from None


def outdated(there: Collection[str], files: Collection[str]) -> set[str]:
    """Returns which objects of an older export go when these files take its place; another export below it stays."""
    below = tuple(key.removesuffix(FILE) for key in there if key.endswith(f"/{FILE}"))
    return {key for key in there if key not in files and not (below and key.startswith(below))}
