"""Imports all modules that need no extra: of those who submit, prepare, look and serve. Prints their number.

It needs the product alone, so that it runs in an image: `python3 -c "$(cat tests/images/imports.py)"`.
"""

import importlib
from pathlib import Path

import echo_queue

OF_EXTRAS = ("reporting/plots/", "reporting/tensorboard.py", "weights/")
"""Modules that need the extras `report`, `tensorboard` and `torch`; and a folder, a part of which needs
`torch`. The commands that list and verify weights import the rest of it."""


def own_modules(folder: Path) -> list[str]:
    """Returns the names of the modules in the package's folder, except those of extras."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    kept = [file for file in files if not file.startswith(OF_EXTRAS) and not file.endswith("__main__.py")]
    return [f"echo_queue/{file}".removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in kept]


if __name__ == "__main__":
    modules = own_modules(Path(echo_queue.__path__[0]))
    for module in modules:
        importlib.import_module(module)
    print(f"{len(modules)} modules need no extra")
