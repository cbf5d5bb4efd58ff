"""Memory that runs out is one problem, which names the keys that take less of it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from echo_queue.config import Learner
from echo_queue.errors import REFUSED
from learner import training_loop
from learner.__main__ import main
from learner.out_of_memory import memory_problem

OF_A_GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …\nSee documentation")
OF_PINNED = RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")
FULL = """
import resource, torch
resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
from echo_queue.config import Learner
from learner.out_of_memory import memory_problem
for take in (lambda: torch.empty(1 << 40, dtype=torch.uint8), lambda: bytearray(1 << 40)):
    try:
        take()
    except (RuntimeError, MemoryError) as error:
        print(type(error).__name__, "|", str(memory_problem(error, Learner())).splitlines()[0])
"""


def test_a_full_gpu_names_what_was_asked_for_and_every_key_that_takes_less() -> None:
    said = str(memory_problem(OF_A_GPU, Learner()))
    assert "the GPU has no memory left" in said and "Tried to allocate 2.00 GiB" in said
    assert "See documentation" not in said
    for way in ('activation_checkpointing = "selective" or "full"', "micro_tokens below 16384", "offload = true"):
        assert f"learner.{way}" in said


def test_what_is_on_already_is_not_named() -> None:
    said = str(memory_problem(OF_A_GPU, Learner(activation_checkpointing="full", offload=True)))
    assert "activation_checkpointing" not in said and "offload" not in said and "micro_tokens" in said


def test_memory_of_the_host_is_told_apart_from_that_of_the_gpu() -> None:
    said = str(memory_problem(OF_PINNED, Learner()))
    assert "this machine has no memory left" in said and "offload" not in said


def test_a_host_that_is_really_full_is_explained() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["RuntimeError", "MemoryError"]
    assert all("learner: this machine has no memory left for the learner" in line for line in lines), lines


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("memory")])
def test_any_other_error_stays_what_it_is(error: Exception) -> None:
    assert memory_problem(error, Learner()) is None


def test_a_learner_without_memory_ends_with_one_problem(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """… and is not started again, to meet it again."""

    def train(*_: object) -> None:
        raise OF_A_GPU

    path = tmp_path / "run.toml"
    path.write_text('[run]\nname = "r"\ndir = "r"\n')
    monkeypatch.setattr(training_loop, "train", train)
    monkeypatch.setattr(sys, "argv", ["learner", str(path)])
    assert main() == REFUSED
    said = capfd.readouterr().err
    assert "the GPU has no memory left" in said and "Traceback" not in said
