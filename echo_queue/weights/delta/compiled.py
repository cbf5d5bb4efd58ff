"""Compiles the loops that numpy is too slow for with numba: once per machine, since numba keeps them on disk.

Compiled functions check no bounds: each states its preconditions, and its caller ensures them. They release the GIL.
Indices are unsigned, because for signed ones numba also checks whether they count from the end.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

U = np.uint64
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compiles `function` when it is first called."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # numba may write to no folder here: each process compiles for itself
        return cast(F, numba.njit(nogil=True)(function))


def call_first() -> None:
    """Calls a compiled function that does nothing. The first call of any in a process takes long."""
    _same(U(0))


@compiled
def _same(number: U) -> U:
    return number
