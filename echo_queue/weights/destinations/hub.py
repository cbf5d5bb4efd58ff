"""A model's folder as a repository of the Hugging Face hub: one commit, so that a reader sees all of it or none of it.

- The client is `huggingface_hub`. The token is that of `HF_TOKEN`, or of the hub's own login; no configuration has one.
- Only an export of ours is replaced: a repository with an `export.json`, or one without files. A file that the export
  before had, and this one has not, is removed by the same commit.
- A repository keeps its visibility. One that is not as visible as was asked for is refused.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.errors import HTTPError as ClientError  # type: ignore[attr-defined]
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from echo_queue import failpoints
from echo_queue.connections.storage.errors import Unreachable
from echo_queue.errors import ConfigError, Problem, ServiceError
from echo_queue.models.exported import FILE

ATTEMPTS = 5
PAUSE_S = 5.0
"""The pause before the second attempt of an upload; each later one is twice as long."""
ATTRIBUTES = ".gitattributes"
"""The file with which the hub makes a repository."""
NAME = re.compile(r"[^/]+/[^/]+")
TOKENS = "https://huggingface.co/settings/tokens"
CHANGED = (409, 412)
PASSING = (*CHANGED, 408, 425, 429, 500, 502, 503, 504)
"""Answers that another attempt may not get."""

T = TypeVar("T")


@dataclass(frozen=True)
class HubRepository:
    """A repository OWNER/NAME, and whether it is to be public."""

    name: str
    public: bool

    @classmethod
    def of(cls, name: str, *, public: bool) -> "HubRepository":
        """Raises `ConfigError` for a name that no repository may have. Nothing is asked yet."""
        try:
            validate_repo_id(name)
            valid = NAME.fullmatch(name) is not None
        except HFValidationError:
            valid = False
        if not valid:
            raise ConfigError(Problem("--push", f"{name!r} is no repository of the hub", "write OWNER/NAME"))
        return cls(name, public)

    def require(self) -> None:
        """Asks the hub whether an export may go there, and changes nothing.

        Raises `ConfigError` for a repository that is not ours to replace, `ServiceError` for a hub that is away, for a
        token that is missing, and for one that may not write there.
        """
        self._asked(self._found)
        self._asked(self._require_owner)

    def upload(self, folder: Path, message: str, told: Callable[[str], None]) -> str:
        """Makes the repository if need be, and commits the folder's files. Returns the commit's address.

        What may pass is tried again, up to `ATTEMPTS` times in all; `told` hears of each failure. Raises as `require`
        does.
        """
        for attempt in range(1, ATTEMPTS):
            try:
                return self._asked(lambda: self._upload(folder, message))
            except Unreachable as error:
                told(f"attempt {attempt} of {ATTEMPTS} to push failed: {error.problems[0].what}")
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
        return self._asked(lambda: self._upload(folder, message))

    def _upload(self, folder: Path, message: str) -> str:
        hub = HfApi()
        found = self._found()
        if found is None:
            failpoints.step(
                "make repository", lambda: hub.create_repo(self.name, private=not self.public, exist_ok=True)
            )
            found = hub.model_info(self.name)
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        old = [name for name in _files(found) if name not in (*files, ATTRIBUTES)]
        operations: list[CommitOperationAdd | CommitOperationDelete] = []
        operations += [CommitOperationAdd(name, path) for name, path in files.items()]
        operations += [CommitOperationDelete(name, is_folder=False) for name in old]

        def commit() -> str:
            # The parent is named: a repository that changes meanwhile is never mixed with this export.
            made = hub.create_commit(self.name, operations, commit_message=message, parent_commit=found.sha)
            return str(made.commit_url)

        return failpoints.step("push model", commit)

    def _found(self) -> ModelInfo | None:
        """Returns the repository; None if there is none, as far as our token may see. Raises `ConfigError`."""
        if get_token() is None:
            fix = f"set HF_TOKEN to a token that may write, or log in by `hf auth login` ({TOKENS})"
            raise ConfigError(Problem("--push", "there is no token of the hub", fix))
        try:
            found = HfApi().model_info(self.name)
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:
                raise
            return None
        files = [name for name in _files(found) if name != ATTRIBUTES]
        if files and FILE not in files:
            what = f"{self.name} has other content, and is left as it is: there is no {FILE} in it"
            raise ConfigError(Problem("--push", what, "name another repository"))
        if self.public and found.private:
            what = f"{self.name} is private, and stays so"
            raise ConfigError(Problem("--public", what, "leave --public out, or make it public at the hub"))
        if not self.public and not found.private:
            what = f"{self.name} is public, and all could read what is pushed"
            raise ConfigError(Problem("--push", what, "add --public, name another one, or make it private at the hub"))
        return found

    def _require_owner(self) -> None:
        """Raises `ServiceError` for a token that may write to no repository of this owner, as the hub says."""
        known = HfApi().whoami()
        owner = self.name.partition("/")[0]
        owners = [known.get("name", ""), *(one.get("name", "") for one in known.get("orgs", ()))]
        if owner not in owners:
            what = f"the token may not write as {owner}, only as {', '.join(owners)}"
            raise ServiceError(Problem("--push", what, "correct OWNER, or set HF_TOKEN to a token of its"))
        if known.get("auth", {}).get("accessToken", {}).get("role") == "read":
            what = "the token may read and not write"
            raise ServiceError(Problem("--push", what, f"set HF_TOKEN to a token that may write ({TOKENS})"))

    def _asked(self, request: Callable[[], T]) -> T:
        """Returns the hub's answer. Raises `Unreachable` for a failure that may pass, `ServiceError` for another."""
        try:
            return request()
        except (HfHubHTTPError, ClientError, OSError, RuntimeError, ValueError) as error:
            raise _explained(_cause(error), self.name) from None


def _files(found: ModelInfo) -> list[str]:
    return [one.rfilename for one in found.siblings or ()]


def _cause(error: Exception) -> Exception:
    """Returns the error that the client has wrapped in one of its own, or `error` itself."""
    inner = error.__cause__
    return inner if isinstance(error, RuntimeError) and isinstance(inner, Exception) else error


def _explained(error: Exception, name: str) -> ServiceError:
    """Returns the error to raise: one sentence, and what to do."""
    place = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if isinstance(error, OfflineModeIsEnabled):
        return ServiceError(Problem("--push", "HF_HUB_OFFLINE keeps the hub away", "unset HF_HUB_OFFLINE"))
    if isinstance(error, HfHubHTTPError):
        return _refused(error.response.status_code, _line(error.server_message or str(error)), name, place)
    if isinstance(error, ClientError | ConnectionError | TimeoutError):
        what = f"the hub at {place} does not answer: {_line(str(error) or type(error).__name__)}"
        return Unreachable(Problem("--push", what, "check the network, its proxy and HF_ENDPOINT"))
    kind = Unreachable if isinstance(error, RuntimeError) else ServiceError  # as Xet says that its server is away
    return kind(Problem("--push", f"{name} was not pushed: {_line(str(error))}", "export again"))


def _refused(status: int, said: str, name: str, place: str) -> ServiceError:
    """Returns the error for an answer of the hub that is none of success."""
    kind = Unreachable if status in PASSING else ServiceError
    what, fix = f"the hub at {place} refuses {name}: {status} {said}", "try again later"
    if status == 401:
        what, fix = "the hub does not know this token", f"set HF_TOKEN to one that it knows ({TOKENS})"
    if status == 403:
        what, fix = f"the token may not write to {name}: {said}", f"set HF_TOKEN to one that may write there ({TOKENS})"
    if status in CHANGED:
        what, fix = f"{name} has changed meanwhile: {said}", "find out who else writes to it, and export again"
    return kind(Problem("--push", what, fix))


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
