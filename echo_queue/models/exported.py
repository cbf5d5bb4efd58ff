"""Folders of exported models: which are ours, so that only those are ever replaced.

A folder is written under a temporary name beside it, and renamed once it is whole. A killed export leaves the temporary
folder, which no program reads and the next export to the same place removes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from echo_queue import documents
from echo_queue.errors import ConfigError, Problem

FILE = "export.json"
EXPORTS = "exports"
"""The folder in the run's directory to which a learner exports versions by itself."""

BEST = "best"
"""The link there that leads to the best version."""
NAME = re.compile(r"\d+\.\d+")


@dataclass(frozen=True)
class Mark:
    """What an exported folder says of itself. `model`: a version, `final` or `base`; `adapter`: it is PEFT's folder."""

    run: str
    model: str
    adapter: bool

    def write(self, folder: Path) -> None:
        (folder / FILE).write_bytes(documents.encode(self) + b"\n")


def mark_of(folder: Path) -> Mark | None:
    """Returns the mark of a folder; None for one that is not ours."""
    try:
        return documents.decode(Mark, (folder / FILE).read_bytes().rstrip(b"\n"), FILE)
    except (OSError, ValueError):
        return None


def exported_versions(folder: Path) -> list[str]:
    """Returns the names of the versions whose exports stand in a folder: `LINEAGE.NUMBER`."""
    found = folder.iterdir() if folder.is_dir() else ()
    return [one.name for one in found if NAME.fullmatch(one.name) and mark_of(one)]


def temporary_of(folder: Path) -> Path:
    """Returns the name under which a folder is written."""
    return folder.with_name(f".{folder.name}.tmp")


def refuse_foreign(folder: Path) -> None:
    """Raises `ConfigError` unless a folder may be written here: nothing is there, or nothing but an export of ours."""
    try:
        if not folder.is_dir():
            refused = "is a file" if folder.exists() or folder.is_symlink() else ""
        else:
            refused = "is no exported model" if any(folder.iterdir()) and mark_of(folder) is None else ""
    except OSError as error:
        refused = f"cannot be looked into: {error.strerror or error}"
    if refused:
        raise ConfigError(Problem(str(folder), f"{refused}, and is left as it is", "name another folder"))
