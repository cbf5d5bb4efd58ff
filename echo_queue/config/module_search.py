"""Finds a user's module as the processes of a run do: an installed one of its name is imported in its place."""

import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

OURS = ("echo_queue", "learner", "workers")


def add_current_folder() -> None:
    """Lets modules of the current folder be imported, unless an installed one has their name."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)


def find(name: str) -> ModuleSpec | None:
    """Returns the module of this name: an installed one, else that of the current folder; None if there is none."""
    return PathFinder.find_spec(name, _installed()) or PathFinder.find_spec(name, [str(Path.cwd())])


def in_place_of(file: Path) -> str:
    """Returns what is imported in place of a module of the current folder; empty if that is imported itself."""
    name = file.stem
    if name in OURS:
        ours = Path(__file__).parents[2] / name
        return "" if ours.resolve() in (file.resolve(), file.parent.resolve()) else f"Echo Queue's own {name}"
    if name in sys.stdlib_module_names:
        return f"Python's own {name}"
    spec = PathFinder.find_spec(name, _installed())
    if spec is None or spec.origin is None or Path(spec.origin).resolve().is_relative_to(Path.cwd().resolve()):
        return ""
    return f"the installed {name} ({spec.origin})"


def hidden() -> Iterator[Path]:
    """Yields the modules of the current folder that nothing can import, in order of their names."""
    for file in sorted(Path.cwd().iterdir()):
        is_module = file.suffix == ".py" if file.is_file() else (file / "__init__.py").is_file()
        if is_module and in_place_of(file):
            yield file


def displaced() -> Iterator[tuple[str, Path]]:
    """Yields each package of ours that a folder of PYTHONPATH displaces, and the module that is there."""
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        for name in OURS:
            spec, ours = PathFinder.find_spec(name, [folder]), Path(__file__).parents[2] / name
            if spec and spec.origin and ours.resolve() != Path(spec.origin).resolve().parent:
                yield name, Path(spec.origin)


def module_file(name: str) -> Path | None:
    """Returns the module of this name in the current folder, a file or a folder; None if there is none."""
    for file in (Path.cwd() / name, Path.cwd() / f"{name}.py"):
        if file.is_file() or (file / "__init__.py").is_file():
            return file
    return None


def _installed() -> list[str]:
    """Returns the path without the current folder, unless PYTHONPATH names it."""
    folder = str(Path.cwd())
    named = {str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    return [entry for entry in sys.path if (entry or folder) != folder or folder in named]
