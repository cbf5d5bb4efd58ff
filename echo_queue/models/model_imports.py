"""What need not be imported with large packages."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def spare_scipy() -> None:
    """Makes transformers take scipy for missing in this process, which saves 0.7 s of a core with the first model.

    transformers imports hundreds of scipy's modules where it is installed, for the losses of object detection. Call
    this before transformers is imported.
    """
    with without("scipy"):
        from transformers.utils.import_utils import is_scipy_available

        is_scipy_available()  # remembers its answer


@contextmanager
def without(name: str) -> Iterator[None]:
    """Makes a module seem missing, unless it is imported already. What imports it afterwards gets it."""
    if name in sys.modules:
        yield
        return
    # None says that there is no such package (the language reference, "The module cache").
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
