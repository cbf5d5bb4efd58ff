"""A hub model is opened as the folder of one commit. The hub is a server of the test's own."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http_server import Asked, Reply, serving

COMMITS = {"main": "b" * 40, "v1": "a" * 40}
OPENED = {"config.json", "tokenizer.json", "model.safetensors"}
LEFT = {"pytorch_model.bin", "original/consolidated.00.pth", "consolidated.safetensors"}
SAY = """
import sys
from echo_queue.config import Config
from echo_queue.models.hub import base_folder
for revision in sys.argv[1:]:
    model = {"base": "somebody/tiny", "revision": revision}
    try:
        print(base_folder(Config.model_validate({"run": {"name": "t", "dir": "t"}, "model": model})))
    except OSError as error:
        print(error)
"""


def hub(asked: Asked) -> Reply:
    """Answers as the hub does for one model: a revision's commit, the commit's list of files, and the files."""
    model, files = "/api/models/somebody/tiny/", "/somebody/tiny/resolve/"
    if asked.path.startswith(files):
        commit, _, name = asked.path.removeprefix(files).partition("/")
        return Reply(200, content(name, commit), {"X-Repo-Commit": commit, "ETag": f'"{oid(name, commit)}"'})
    if not asked.path.startswith(model):
        return Reply(404, b"", {"X-Error-Code": "RepoNotFound"})
    question, revision = asked.path.removeprefix(model).split("/")
    commit = COMMITS.get(revision, revision)
    if commit not in COMMITS.values():
        return Reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
    answer: object = {"id": "somebody/tiny", "sha": commit}
    if question == "tree":
        named = sorted(OPENED | LEFT)
        sizes = {name: len(content(name, commit)) for name in named}
        answer = [{"type": "file", "path": name, "size": sizes[name], "oid": oid(name, commit)} for name in named]
    return Reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})


def content(name: str, commit: str) -> bytes:
    return f"{name} of {commit}".encode()


def oid(name: str, commit: str) -> str:
    return hashlib.sha1(content(name, commit)).hexdigest()


def folders(home: Path, *revisions: str, **environ: str) -> list[str]:
    """Returns what a role says of each revision, in a process of its own: the client reads its environment once."""
    settings = os.environ | {"HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | environ
    done = subprocess.run(
        [sys.executable, "-c", SAY, *revisions], env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_revision_is_one_folder_with_the_files_that_are_opened_and_is_there_without_the_hub(tmp_path: Path) -> None:
    asked: list[str] = []

    def counting(request: Asked) -> Reply:
        asked.append(request.path)
        return hub(request)

    with serving(counting) as url:
        found = folders(tmp_path, "v1", "main", COMMITS["v1"], "v3", HF_ENDPOINT=url)
    v1, main, commit, none = found
    assert (Path(v1).name, Path(main).name, commit) == (COMMITS["v1"], COMMITS["main"], v1)
    assert {file.name for file in Path(v1).iterdir()} == OPENED
    assert Path(v1, "config.json").read_text() == f"config.json of {COMMITS['v1']}"
    assert none.startswith("there is no folder somebody/tiny (looked in ") and "Revision Not Found" in none
    assert "), and the hub gave no somebody/tiny at revision v3: 404 " in none
    assert not any(name in path for path in asked for name in LEFT)
    assert folders(tmp_path, "v1", "main", HF_HUB_OFFLINE="1") == [v1, main]
    assert "at revision v2: Cannot find" in folders(tmp_path, "v2", HF_HUB_OFFLINE="1")[0]
