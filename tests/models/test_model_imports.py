"""Roles that compute import what they need, and no more."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import echo_queue.launch.fork_server.model_roles
import learner.training_loop, workers.engines.transformers.engine, workers.worker
from transformers.models.qwen3 import modeling_qwen3

assert not {"scipy.optimize", "scipy.linalg"} & set(sys.modules)
assert "numba.cpython.rangeobj" in sys.modules, "numba imports it with the first compiled function"
assert threading.active_count() == 1, "a process with threads is not forked"
import scipy.optimize
"""


@pytest.mark.slow
def test_a_model_comes_without_scipy_which_can_be_imported_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
