"""What the images promise, as far as their files show it: `make infra` and `make images-test` show the rest."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.infra.check import copy_of_tree
from tests.infra.launchers import dockerfile_problems, versions
from tests.infra.rendered import ROOT

DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


def test_wheel_chart_and_images_have_one_version(tmp_path: Path) -> None:
    assert versions(copy_of_tree(tmp_path)) == []


def test_no_image_runs_as_root_or_stands_on_a_base_that_may_change() -> None:
    assert list(dockerfile_problems(DOCKERFILE)) == []
    assert list(dockerfile_problems(DOCKERFILE.replace("USER 10001:10001\n", "USER 0\n"))) != []
    assert list(dockerfile_problems(DOCKERFILE.replace("FROM ${BASE} AS role", "FROM python:3.11 AS role"))) != []


def test_an_image_installs_what_an_extra_asks_for_and_leaves_what_its_base_brings(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt", "docker/requirements.py"):
        (tmp_path / Path(name).name).write_text((ROOT / name).read_text())
    brought = tmp_path / "base" / "torch-9.9.9+cu130.dist-info"
    brought.mkdir(parents=True)
    (brought / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9+cu130\n")
    command = [sys.executable, "-S", "requirements.py", "worker"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "base")}
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, check=True)
    required = (tmp_path / "requirements.txt").read_text().splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*extras["torch"], *extras["reasoning-gym"], "httpx2>=2.16"} <= set(required)
    assert not any(line.startswith("echo-queue") for line in required)
    pins = (tmp_path / "pins.txt").read_text().splitlines()
    assert [line for line in pins if line.startswith("torch==")] == ["torch==9.9.9+cu130"]
    assert any(line.startswith("transformers==") for line in pins)


@pytest.mark.parametrize(("base", "code"), [("python:3.11-slim", 2), ("python@sha256:" + "0" * 64, 0)])
def test_a_base_by_its_tag_is_refused_before_anything_is_built(tmp_path: Path, base: str, code: int) -> None:
    for builder in ("docker", "buildah"):
        (tmp_path / builder).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / builder).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(ROOT / "docker" / "build.sh"), base, "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert code == 0 or "name it by its digest" in done.stderr
