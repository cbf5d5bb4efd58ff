"""The packages of the images without torch are enough for the roles that they are for."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.infra.rendered import ROOT

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {hidden!r}:
            raise ModuleNotFoundError(f"{{name}} comes with an extra alone")
sys.meta_path.insert(0, Hidden())
"""


def brought(requirements: Iterable[str], extras: Iterable[str] = ()) -> set[str]:
    """Returns the names of the distributions that installing these requirements brings, normalised (PEP 503)."""
    found: set[str] = set()
    for one in map(Requirement, requirements):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found |= {canonicalize_name(one.name)} | brought(distribution(one.name).requires or (), one.extras)
    return found


@pytest.mark.slow
def test_those_who_submit_prepare_look_and_serve_need_no_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {"echo-queue"} | brought(project["dependencies"])
    assert not installed & {"pyarrow", "torch", "matplotlib", "reasoning-gym"}
    hidden = {
        package
        for package, names in packages_distributions().items()
        if not installed & {canonicalize_name(name) for name in names} and not package.startswith("_")
    }
    script = HIDE.format(hidden=hidden) + (ROOT / "tests" / "images" / "imports.py").read_text()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "modules need no extra" in done.stdout


def test_the_controllers_image_has_what_plans_need_and_the_services_that_its_driver_calls() -> None:
    """The chart's page names that image."""
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    stage = next(one for one in dockerfile.split("\nFROM ") if one.startswith("python AS controller-packages"))
    assert "requirements.py plan " in stage and "FROM role AS controller\nCOPY --from=controller-packages" in dockerfile
    driver = (ROOT / "echo_queue" / "fleet" / "drivers" / "groups" / "aws.py").read_text()
    called = set(re.findall(r'"(ec2|autoscaling)"', driver))
    (kept,) = re.findall(r"slim\.py ([a-z0-9 ]+)", stage)
    assert set(kept.split()) == called == {"ec2", "autoscaling"}
    assert "echo-queue-controller@sha256" in (ROOT / "infra" / "helm" / "README.md").read_text()


@pytest.mark.slow
def test_what_a_fix_tells_to_install_comes_from_no_index_under_this_projects_name() -> None:
    """`pip install 'echo-queue[…]'` keeps the package that is installed, and brings only what the extra lacks."""
    pytest.importorskip("pip")
    extras = "echo-queue[worker,learner,plan,parquet,tensorboard]"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--quiet", extras]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
