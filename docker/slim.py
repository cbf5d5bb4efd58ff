"""Removes from an environment what no role ever uses: `FOLDER/bin/python slim.py [SERVICE...]`.

- Tests and C headers of packages, what installs packages, and what downloads models from a hub.
- botocore's descriptions of services that nobody here calls. A role that calls further ones names them.
- Symbols for linkers and debuggers, from each library that loads without them: `strip` breaks some that were patched
  when their wheel was built, and these stay as they are.
"""

import shutil
import subprocess
import sys
from pathlib import Path

SERVICES = {"s3", "signin", "sso", "sso-oidc", "sts"}
"""The services of AWS that a client of the store calls: the store, and those that give credentials for it."""
HEADERS = ("numpy/_core/include", "pyarrow/include", "pyarrow/src")
INSTALLERS = (
    *("pip", "pip-*", "setuptools", "setuptools-*", "pkg_resources", "_distutils_hack", "distutils-precedence.pth"),
    *("hf_xet", "hf_xet-*"),
)
LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
DEADLINE_S = 60


def slim(packages: Path, services: set[str]) -> None:
    """Slims the packages of the interpreter that runs this, which calls these services of AWS."""
    for folder in sorted(packages.rglob("tests")):
        shutil.rmtree(folder, ignore_errors=True)
    for pattern in (*HEADERS, *INSTALLERS):
        for path in packages.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for folder in packages.glob("botocore/data/*/"):
        if folder.is_dir() and folder.name not in services:
            shutil.rmtree(folder)
    for library in sorted(packages.rglob("*.so*")):
        strip(library)


def strip(library: Path) -> None:
    """Strips a library where it is, since it finds others beside itself, and takes it back if it no longer loads."""
    if not loads(library):
        return
    whole = library.read_bytes()
    done = subprocess.run(["strip", "--strip-unneeded", library], capture_output=True, timeout=DEADLINE_S, check=False)
    if done.returncode != 0 or not loads(library):
        library.write_bytes(whole)


def loads(library: Path) -> bool:
    words = [sys.executable, "-c", LOAD, library]
    return subprocess.run(words, capture_output=True, timeout=DEADLINE_S, check=False).returncode == 0


if __name__ == "__main__":
    slim(Path(sys.prefix, "lib", f"python3.{sys.version_info.minor}", "site-packages"), SERVICES | set(sys.argv[1:]))
