"""Installs the wheel in a folder, alone in a fresh environment, and uses it: `python -m tests.images.wheel dist`.

The environment is outside of the project, and so is every folder in which the commands run: nothing but the wheel can
bring what they need.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

from tests.images.engine import ROOT
from tests.waiting import wait_until

PACKAGES = ("echo_queue", "workers", "learner")
INSTALL_S, COMMAND_S = 900.0, 120.0
CONFIG = '[run]\nname = "wheel"\ndir = "run"\n'


def main(dist: Path) -> int:
    (wheel,) = dist.glob("*.whl")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert wheel.name.startswith(f"echo_queue-{version}-"), wheel.name
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S, check=True
    ).stdout.split()
    missing = sorted(set(tracked) - set(zipfile.ZipFile(wheel).namelist()))
    assert not missing, f"the wheel lacks {missing}"
    print(f"ok: {wheel.name} has all {len(tracked)} files of the packages", flush=True)
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        use(wheel.resolve(), version, Path(folder))
    return 0


def use(wheel: Path, version: str, folder: Path) -> None:
    venv.create(folder / "venv", with_pip=True)
    python, program = folder / "venv/bin/python", folder / "venv/bin/echo-queue"
    install = [python, "-m", "pip", "-qq", "install", f"{wheel}[embedded]", "--constraint", ROOT / "constraints.txt"]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(install, cwd=folder, env=bare, timeout=INSTALL_S, check=True)

    def said(*words: str) -> str:
        options = {"capture_output": True, "text": True, "timeout": COMMAND_S}
        return subprocess.run([program, *words], check=True, cwd=folder, env=bare, **options).stdout

    assert said("--version").split() == ["echo-queue", version]
    assert said("config", "reference") == (ROOT / "docs" / "configuration.md").read_text()
    (folder / "run.toml").write_text(CONFIG)
    services = subprocess.Popen([program, "services", "run.toml"], cwd=folder, env=bare)
    try:
        wait_until((folder / "run/services/store.json").exists, "the services of the installed wheel", COMMAND_S)
        assert json.loads(said("audit", "run.toml", "--json"))["ok"]
        assert said("healthy", "services") == "services lives\n"
    finally:
        services.terminate()
        code = services.wait(timeout=COMMAND_S)
    assert code == 0, f"services ended with {code}"
    print("ok: in an environment of its own it serves a run, and its audit holds", flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
