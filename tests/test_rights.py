"""The rights in docs/rights.md give each role of an external object store what it uses, and no more."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import orjson
import pytest

TEXT = (Path(__file__).parents[1] / "docs" / "rights.md").read_text()
BLOCKS = re.findall(r"^(\w+)[^\n]*:\n\n```json\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE)
POLICIES: dict[str, Any] = {name.lower(): orjson.loads(block) for name, block in BLOCKS}
FOLDERS = ("weights", "checkpoints", "prompts", "base", "replay", "partials", "exports", ".probe")
MAY: dict[str, dict[str, set[str]]] = {
    "worker": {
        "GetObject": {"weights", "prompts", "base", "partials"},
        "PutObject": {"replay", "partials"},
        "DeleteObject": set(),
    },
    "submitter": {"GetObject": {"prompts"}, "PutObject": {"prompts"}, "DeleteObject": set()},
    "learner": {action: set(FOLDERS) for action in ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload")},
}


def allowed(role: str, action: str, resource: str) -> bool:
    """Decides as IAM does without conditions: some statement allows it, none denies."""
    for statement in POLICIES[role]["Statement"]:
        assert statement["Effect"] == "Allow" and "Condition" not in statement
        actions, resources = (
            [given] if isinstance(given := statement[part], str) else given for part in ("Action", "Resource")
        )
        if f"s3:{action}" in actions and any(fnmatchcase(resource, pattern) for pattern in resources):
            return True
    return False


@pytest.mark.parametrize("role", MAY)
def test_each_role_reaches_its_own_folders_and_no_others(role: str) -> None:
    assert set(POLICIES) == set(MAY)
    assert allowed(role, "ListBucket", "arn:aws:s3:::BUCKET")
    for action, folders in MAY[role].items():
        reached = {folder for folder in FOLDERS if allowed(role, action, f"arn:aws:s3:::BUCKET/RUN/{folder}/a/b")}
        assert reached == folders, action
        assert not allowed(role, action, "arn:aws:s3:::BUCKET/OTHER/weights/a")
