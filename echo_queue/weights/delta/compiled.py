"""Compiles the loops that numpy is too slow for with numba: once per machine, since numba keeps them on disk.

Compiled functions check no bounds: each states its preconditions, and its caller ensures them. They release the GIL.
Indices are unsigned, because for signed ones numba also checks whether they count from the end.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from echo_queue.models.model_imports import without

U = np.uint64
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compiles `function` when it is first called."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # numba may write to no folder here: each process compiles for itself
        return cast(F, numba.njit(nogil=True)(function))


def prepare() -> None:
    """Makes numba ready for compiled functions, which the first publication and the first fetch would wait for.

    With the first one, numba imports what it knows of Python and numpy, and scipy's linear algebra. That takes half a
    second of a core; without scipy, which numba can do without here, and while the collector is paused
    (`collection.paused`), it takes a tenth. A user's own `numpy.convolve` in numba is then a plain loop.
    """
    with without("scipy.linalg"):
        _same(U(0))


@compiled
def _same(number: U) -> U:
    return number
