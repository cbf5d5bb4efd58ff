"""Everything on which the roles of a run agree. `__version__` is the release that is installed here."""

from importlib.metadata import version

__version__ = version("echo-queue")
