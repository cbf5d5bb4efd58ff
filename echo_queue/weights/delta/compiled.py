"""The loops that numpy is too slow for, compiled by numba: once per machine, as it keeps them on disk.

A compiled function checks no bounds: each says what it relies on, and its caller sees to it. They let other threads
run meanwhile. Indices are unsigned, because for signed ones numba also looks whether they count from the end.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

U = np.uint64
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # no folder here may be written, so that each process compiles for itself
        return cast(F, numba.njit(nogil=True)(function))
