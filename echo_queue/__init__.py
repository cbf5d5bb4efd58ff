"""Everything on which the roles of a run agree. `__version__` is the release that is here, installed or not."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def _version() -> str:
    """Returns the installed release's version, or that of the checkout which this is."""
    try:
        return version("echo-queue")
    except PackageNotFoundError:
        import tomllib

        project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return str(project["version"])


__version__ = _version()
