"""What need not be imported with a model of transformers, and what is better imported at once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


def spare_scipy() -> None:
    """Makes transformers take scipy for missing in this process, which saves 0.7 s of a core with the first model.

    transformers imports hundreds of scipy's modules where it is installed, for the losses of object detection. Call
    this before transformers is imported.
    """
    with _without("scipy"):
        from transformers.utils.import_utils import is_scipy_available

        is_scipy_available()  # remembers its answer


def prepare_numba() -> None:
    """Makes numba ready for compiled functions, which the first publication and the first fetch would wait for.

    With the first one, numba imports what it knows of Python and numpy, and for `numpy.cov` scipy's linear algebra.
    That takes half a second of a core; without scipy, and while the collector is paused (`collection.paused`), it takes
    a tenth.
    """
    with _without("scipy.linalg"):
        from echo_queue.weights.delta.compiled import call_first

        call_first()


@contextmanager
def _without(name: str) -> Iterator[None]:
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
