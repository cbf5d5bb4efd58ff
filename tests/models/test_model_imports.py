"""Roles that compute import what they need, and no more."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from echo_queue.models.model_imports import spare_scipy

spare_scipy()
import learner.training_loop, workers.engines.transformers.engine, workers.worker
from echo_queue.weights.delta import compiled
from transformers.models.qwen3 import modeling_qwen3

compiled.prepare()
assert not {"scipy.optimize", "scipy.linalg"} & set(sys.modules)
assert "numba.cpython.rangeobj" in sys.modules, "numba imports it with the first compiled function"
import scipy.optimize
"""


@pytest.mark.slow
def test_a_model_comes_without_scipy_which_can_be_imported_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
