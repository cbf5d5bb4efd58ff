"""Writes what pip is to install into an image: `python3 requirements.py [EXTRA,…]`, with the base image's Python.

- requirements.txt: what pyproject.toml asks for, for these extras.
- pins.txt: the versions of constraints.txt; and what the base image brings, such as vLLM's torch, at its own version,
  so that it stays as it is.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
OWN_EXTRAS = re.compile(r"echo-queue\[(.*)\]")


def normal(requirement: str) -> str:
    """Returns the name of the package in a requirement, in the form in which names are compared (PEP 503)."""
    found = NAME.match(requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def required(project: dict, extras: list[str]) -> Iterator[str]:
    """Yields the requirements of the project with these extras."""
    yield from project["dependencies"]
    waiting = list(extras)
    while waiting:
        for requirement in project["optional-dependencies"][waiting.pop()]:
            if own := OWN_EXTRAS.match(requirement):
                waiting += own[1].split(",")
            else:
                yield requirement


def pins(constraints: str, brought: dict[str, str]) -> Iterator[str]:
    """Yields the version of each package: as the base image brings it, else as the constraints have it."""
    for line in constraints.splitlines():
        if line and normal(line) not in brought:
            yield line
    for name, version in sorted(brought.items()):
        yield f"{name}=={version}"


if __name__ == "__main__":
    here = Path(__file__).parent
    project = tomllib.loads((here / "pyproject.toml").read_text())["project"]
    brought = {normal(one.metadata["Name"]): one.version for one in distributions()}
    extras = sys.argv[1].split(",") if sys.argv[1:] else []
    Path("requirements.txt").write_text("\n".join(required(project, extras)))
    Path("pins.txt").write_text("\n".join(pins((here / "constraints.txt").read_text(), brought)))
