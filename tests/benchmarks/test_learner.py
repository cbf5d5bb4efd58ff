"""The learner's benchmark runs as a whole where there is no GPU."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import DeviceType
from torch.utils.checkpoint import checkpoint

from benchmarks.learner.parts import part_of, seconds_of
from benchmarks.learner.rates import Rates
from benchmarks.learner.roofline import roofline
from benchmarks.learner.rows import Row, targets
from benchmarks.learner.work import SHAPES


def figures(*options: str) -> list[dict[str, Any]]:
    """The rows of the benchmark with tiny shapes."""
    command = [sys.executable, "-m", "benchmarks.learner", "--fake", "--json", "--repeats", "1", *options]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    verdict = orjson.loads(done.stdout.splitlines()[-1])
    assert verdict["ok"]
    rows: list[dict[str, Any]] = verdict["figures"]
    return rows


def test_a_named_range_on_a_gpu_is_not_counted_beside_its_kernels() -> None:
    def event(
        key: str, milliseconds: int, device: DeviceType = DeviceType.CUDA, named: bool = False
    ) -> SimpleNamespace:
        return SimpleNamespace(
            key=key, device_type=device, is_user_annotation=named, self_device_time_total=1e3 * milliseconds
        )

    events = [
        event("Optimizer.step#AdamW.step", 30, named=True), event("multi_tensor_apply_kernel", 29),
        event("flash_fwd", 7), event("aten::mm", 50, DeviceType.CPU),
    ]  # fmt: skip
    found = {part_of(name): seconds for name, seconds in seconds_of(events, "cuda").items()}
    assert found == pytest.approx({"optimizer": 0.029, "attention": 0.007})


def test_a_roofline_counts_products_with_their_gradients_and_what_is_computed_again() -> None:
    weight, state = torch.ones(4, 4, requires_grad=True), torch.ones(1, 2, 8, 4, requires_grad=True)

    def forward(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q @ weight, q, q, is_causal=True)

    def update() -> None:
        checkpoint(forward, state, use_reentrant=False).sum().backward()

    found = roofline(update, 100.0, Rates(products=1.0, attention=1.0, memory=1.0, launch_s=1.0))
    assert found.products_s == 4 * (2 * 16 * 4 * 4), "two forward passes and two gradients of 16 rows"
    assert found.attention_s == (2 * 4 + 10) * 100
    assert found.elementwise_s > 0 and found.launches_s == found.launches > 6
    assert found.seconds == max(
        found.products_s + found.attention_s + found.elementwise_s + found.copies_s, found.launches_s
    )


@pytest.mark.parametrize(
    ("shape", "device", "checkpointing", "mfu", "judged"),
    [
        ("8B", "NVIDIA H200", "full", 0.39, False),
        ("8B", "NVIDIA H200", "full", 0.41, True),
        ("8B", "NVIDIA H200", "selective", 0.41, False),
        ("4B", "NVIDIA H100 80GB HBM3", "full", 0.34, True),
        ("8B", "NVIDIA H100 80GB HBM3", "full", 0.1, None),
        ("8B", "NVIDIA GH200 480GB", "full", 0.1, None),
        ("0.6B", "NVIDIA H200", "full", 0.1, None),
        ("8B, 12 of 36 layers", "NVIDIA H200", "full", 0.1, None),
    ],
)
def test_only_what_a_card_can_reach_is_judged(
    shape: str, device: str, checkpointing: str, mfu: float, judged: bool | None
) -> None:
    """Other shapes, those that are cut and layers that are not compiled have their roofline and no promise."""
    row = Row(shape, "2x8 of 256+3840", 8_192, 1, "ours", seconds=1.0, mfu=mfu)
    assert not any("MFU" in promise for promise in targets([row], device, checkpointing))
    promises = targets([row], device, checkpointing, compiled=True)
    assert [kept for promise, kept in promises.items() if "MFU" in promise] == ([] if judged is None else [judged])


def test_all_weights_of_8b_are_measured_in_micro_batches_that_fit_one_h200() -> None:
    assert (SHAPES["real"]["8B"].micro_tokens, SHAPES["real"]["8B LoRA"].micro_tokens) == (8_192, 16_384)


def assert_measured(rows: list[dict[str, Any]], ways: set[str]) -> None:
    assert {row["way"] for row in rows} >= ways
    assert len({row["mix"] for row in rows}) == 2
    for row in rows:
        assert row["seconds"] > 0
        if row["way"] == "ours":
            assert row["parts"]["shares"]["matrix products"] > 0 and min(row["stages"].values()) > 0
        else:
            assert row["parts"] is None and row["stages"] is None


@pytest.mark.proof(kind="benchmarks", share=0.15)
def test_all_of_it_runs_with_a_tiny_shape() -> None:
    assert_measured(figures("--shapes", "fake", "--micro-tokens", "256"), {"ours", "transformers"})


@pytest.mark.proof(kind="benchmarks", share=0.15)
@pytest.mark.parametrize(
    ("shape", "ways"),
    [("fake", {"ours", "transformers"}), ("fake LoRA", {"ours"}), ("fake MoE", {"ours", "transformers"})],
)
def test_all_of_it_runs_with_every_tiny_shape_in_several_micro_batches(shape: str, ways: set[str]) -> None:
    rows = figures("--shapes", shape)
    assert_measured(rows, ways)
    assert {row["shape"] for row in rows} == {shape}


@pytest.mark.proof(kind="ranks", share=0.2)
def test_two_ranks_share_a_model_and_offload() -> None:
    rows = figures("--ranks", "2", "--offload")
    assert {(row["ranks"], row["way"]) for row in rows} == {(2, "ours")}


@pytest.mark.slow
def test_a_stage_that_fails_takes_no_row_with_it(tmp_path: Path) -> None:
    """The store's server cannot be imported, which an update does not need."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['echo_queue.launch.servers.s3_server'] = None")
    few = ["--fake", "--repeats", "1", "--shapes", "fake", "--mixes", "8+24", "--ways", "ours", "transformers"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.learner", *few, "--micro-tokens", "256", "--rows", tmp_path / "rows"],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "ours: stages: lost: ModuleNotFoundError" in done.stdout
    rows = [orjson.loads(line) for line in (tmp_path / "rows").read_bytes().splitlines()]
    assert [(row["way"], row["parts"] is not None) for row in rows] == [
        ("ours", False), ("ours", True), ("ours", True), ("transformers", False),
    ]  # fmt: skip
    assert all(row["seconds"] > 0 and row["stages"] is None for row in rows)
    assert rows[2]["roofline"]["products_s"] > 0


@pytest.mark.slow
def test_without_a_gpu_real_shapes_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.learner"],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no GPU here" in done.stderr
