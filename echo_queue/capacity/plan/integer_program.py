"""The smallest cost of whole machines under linear constraints, found exactly by `scipy.optimize.milp` (HiGHS).

scipy is an extra: the first search needs it, and not whoever imports this module.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from echo_queue.errors import ConfigError, Problem

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

Floats = npt.NDArray[np.float64]


def constraint(rows: Floats, *, least: Any = -np.inf, most: Any = np.inf) -> "LinearConstraint":
    """Returns that each row ([M, N]) times the solution lies from `least` to `most` (a number, or one a row).

    Raises `ConfigError` without scipy.
    """
    return _optimize().LinearConstraint(rows, lb=least, ub=most)


def solve(cost: Floats, constraints: "Sequence[LinearConstraint]", *, lower: Any, upper: Any) -> Floats | None:
    """Returns the whole numbers ([N]) of the smallest cost ([N]); None if none keep the constraints and bounds.

    `lower`, `upper`: the bounds, each a number or one an entry. Raises `ConfigError` without scipy.
    """
    optimize = _optimize()
    found = optimize.milp(
        cost,
        integrality=np.ones(len(cost)),
        bounds=optimize.Bounds(lower, upper),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    return np.round(found.x) if found.success else None


def _optimize() -> Any:
    if find_spec("scipy") is None:
        raise ConfigError(Problem("search for machines", "needs scipy", "pip install 'echo-queue[plan]'"))
    import scipy.optimize

    return scipy.optimize
