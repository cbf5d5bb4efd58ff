"""The part of the hub's API that a push needs, as `huggingface_hub` asks for it.

Large files go by Git LFS, and not by Xet.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.http_server import Asked, Reply

TOKEN = "hf_of_a_test"
LARGE_BYTES = 100
"""A file of more bytes is a large one here."""
LFS = "/info/lfs/objects/batch"


@dataclass
class HubServer:
    """The hub of one user, `somebody`, who is in the organisation `lab`. `files`: by repository and name."""

    role: str = "write"
    refuse_commits: list[int] = field(default_factory=list)
    """The statuses with which the next commits are refused."""
    lose_answers: int = 0
    """So many of the next commits are made, and their answers say that something broke."""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    url: str = ""
    _large: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, files: Iterable[str] = (), *, private: bool = True) -> None:
        """Makes a repository with files of some content."""
        self.files[name] = {".gitattributes": b"", **{file: file.encode() for file in files}}
        self.private[name] = private

    def __call__(self, asked: Asked) -> Reply:
        self.asked.append(f"{asked.method} {asked.path}")
        if asked.path.startswith("/storage/"):
            self._large[asked.path.removeprefix("/storage/")] = asked.body
            return Reply(200)
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return _json({"error": "Invalid credentials"}, 401)
        if asked.path.endswith(LFS):
            return self._batch(json.loads(asked.body))
        match asked.path.removeprefix("/api/").split("/"):
            case ["models", owner, name, *rest]:
                return self._of(f"{owner}/{name}", rest, asked)
            case ["repos", "create"]:
                return self._create(json.loads(asked.body))
            case ["whoami-v2"]:
                access = {"displayName": "test", "role": self.role}
                answer: object = {"name": "somebody", "orgs": [{"name": "lab"}], "auth": {"accessToken": access}}
            case _:
                answer = {"errors": [], "warnings": []}  # the card is valid
        return _json(answer)

    def _create(self, wanted: dict[str, str]) -> Reply:
        name = f"{wanted['organization']}/{wanted['name']}"
        if self.role == "read":
            return _json({"error": "You don't have the rights to create a model"}, 403)
        self.add(name, private=wanted["visibility"] == "private")
        return _json({"url": f"{self.url}/{name}", "name": name})

    def _of(self, name: str, rest: list[str], asked: Asked) -> Reply:
        if name not in self.files:
            return Reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        files = self.files[name]
        match rest:
            case ["preupload", "main"]:
                wanted = json.loads(asked.body)["files"]
                modes = [
                    {
                        "path": one["path"],
                        "uploadMode": "lfs" if one["size"] > LARGE_BYTES else "regular",
                        "shouldIgnore": False,
                        "oid": _oid(files[one["path"]]) if one["path"] in files else None,
                    }
                    for one in wanted
                ]
                return _json({"files": modes})
            case ["commit", "main"]:
                return self._commit(name, [json.loads(line) for line in asked.body.splitlines()])
        siblings = [{"rfilename": file} for file in files]
        shown = {"id": name, "sha": self._sha(), "private": self.private[name], "siblings": siblings}
        return _json(shown)

    def _commit(self, name: str, lines: list[dict[str, dict[str, str]]]) -> Reply:
        if self.refuse_commits:
            return _json({"error": "not now"}, self.refuse_commits.pop(0))
        changed = dict(self.files[name])
        for line in lines:
            value = line["value"]
            match line["key"]:  # type: ignore[misc]
                case "header":
                    if value["parentCommit"] != self._sha():
                        return _json({"error": "A commit has happened since"}, 412)
                case "file":
                    changed[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    changed[value["path"]] = self._large[value["oid"]]
                case "deletedFile":
                    del changed[value["path"]]
        self.files[name] = changed
        self.commits.append(lines[0]["value"]["summary"])
        if self.lose_answers:
            self.lose_answers -= 1
            return _json({"error": "lost"}, 500)
        return _json({"commitUrl": f"{self.url}/{name}/commit/{self._sha()}", "commitOid": self._sha()})

    def _batch(self, wanted: dict[str, list[dict[str, str]]]) -> Reply:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.url}/storage/{one['oid']}"}}} for one in wanted["objects"]
        ]
        return _json({"transfer": "basic", "objects": objects})

    def _sha(self) -> str:
        return f"{len(self.commits):040x}"


def _oid(data: bytes) -> str:
    """Returns the name that git gives a small file, and LFS a large one."""
    if len(data) > LARGE_BYTES:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()


def _json(answer: object, status: int = 200) -> Reply:
    said = {"X-Error-Message": str(answer["error"])} if isinstance(answer, dict) and "error" in answer else {}
    return Reply(status, json.dumps(answer).encode(), {"Content-Type": "application/json", **said})
