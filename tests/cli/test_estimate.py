"""`echo-queue estimate` and what it makes `config check` refuse, as processes that have no torch."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import block
from tests.models import MODELS

RUN = """[run]
name = "t"
dir = "out"
[model]
base = "Qwen/Qwen3-8B"
dtype = "bfloat16"
max_new_tokens = 4096
"""


def echo_queue(directory: Path, *arguments: object, text: str = RUN) -> subprocess.CompletedProcess[str]:
    (directory / "run.toml").write_text(text, encoding="utf-8")
    code = block("torch", "transformers", "huggingface_hub") + "from echo_queue.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environ = os.environ | {"HF_HOME": str(directory / "hub"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_table_gives_one_verdict_on_s_and_says_how_many_workers_suffice(tmp_path: Path) -> None:
    eight_b = ("--model-config", MODELS / "qwen3-8b.json", "--device", "h100")
    done = echo_queue(tmp_path, "estimate", "run.toml", *eight_b, "--devices", 8)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("8.191 B", "masters", "4.10 GB", "98.29 GB", "104.01 MB", "T_train"):
        assert words in done.stdout
    assert "…" not in done.stdout.replace("… with checkpointing", ""), "nothing is cut off"
    assert re.findall(r"S = 4 (holds|does not hold)", done.stdout) == ["holds"]
    assert re.search(r"idle \d+% of its time: 2 workers take [\d.]+ times as long", done.stdout)
    assert re.search(r"\d such workers would suffice", done.stdout)
    assert re.search(
        r"With so many the worst lag would be \d updates, and S = 4 would send some groups back", done.stdout
    )
    alone = echo_queue(tmp_path, "estimate", "run.toml", *eight_b)
    assert "The learner does not fit" in alone.stdout and "S = 4 holds" in alone.stdout
    larger = ("--model-config", MODELS / "qwen3-30b-a3b.json", "--device", "h100")
    assert "The learner does not fit" in echo_queue(tmp_path, "estimate", "run.toml", *larger).stdout


@pytest.mark.slow
def test_a_learner_that_would_fill_the_card_does_not_fit(tmp_path: Path) -> None:
    """84.3 of the 85.5 GB leave less than the margin of 5 %."""
    text = RUN.replace("4096", "2048") + '[learner]\nmicro_tokens = 8192\nactivation_checkpointing = "full"\n'
    four_b = ("--model-config", MODELS / "qwen3-4b.json", "--device", "h100")
    done = echo_queue(tmp_path, "estimate", "run.toml", *four_b, text=text)
    assert "The learner needs 84." in done.stdout and "It fits with learner.offload = true: " in done.stdout
    offloaded = echo_queue(tmp_path, "estimate", "run.toml", *four_b, text=text + "offload = true\n")
    assert "The learner fits: " in offloaded.stdout and "the others are in host memory" in offloaded.stdout


@pytest.mark.slow
def test_the_rate_of_a_cpu_is_measured(tmp_path: Path) -> None:
    done = echo_queue(tmp_path, "estimate", "run.toml", "--model-config", MODELS / "qwen3-0.6b.json", "--device", "cpu")
    assert "70% of" in done.stdout and "measured here" in done.stdout


@pytest.mark.slow
def test_scripts_get_plain_numbers(tmp_path: Path) -> None:
    done = echo_queue(
        tmp_path, "estimate", "run.toml", "--json", "--model-config", MODELS / "qwen3-30b-a3b.json", "--change", 0.03
    )
    found = json.loads(done.stdout)
    assert found["shape"]["parameters"] == 30_532_122_624
    assert list(found["deltas"]) == ["0.01", "0.03", "0.05"]
    assert found["learner"]["masters"] == 4 * 30_532_122_624
    assert isinstance(found["lag"]["holds"], bool)


@pytest.mark.slow
def test_a_model_that_is_not_here_is_one_clear_error(tmp_path: Path) -> None:
    done = echo_queue(tmp_path, "estimate", "run.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "neither a folder with a config.json nor in the hub's cache" in done.stderr
    assert "hf download Qwen/Qwen3-8B config.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def large(tmp_path: Path) -> str:
    """The text of a configuration with a model of four billion parameters."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_bytes((MODELS / "qwen3-4b.json").read_bytes())
    return RUN.replace("Qwen/Qwen3-8B", "model")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("config", "check"), ("run",), ("learner",)])
def test_a_large_model_on_a_cpu_is_refused_before_anything_starts(
    large: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = echo_queue(tmp_path, *arguments, "run.toml", text=large)
    assert done.returncode == 2
    assert "learner.device: the model has 4.0 billion parameters" in done.stderr
    assert not (tmp_path / "out" / "logs").exists(), "nothing was started"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("config", "check"), ("learner",)])
def test_a_model_that_is_not_trained_is_refused_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "mamba2"}', encoding="utf-8")
    done = echo_queue(tmp_path, *arguments, "run.toml", text=RUN.replace("Qwen/Qwen3-8B", "model"))
    assert done.returncode == 2
    assert done.stderr.count("of type mamba2") == 1
    assert "model.base: the model, of type mamba2, has layers with a recurrent state" in done.stderr
    assert not (tmp_path / "out" / "logs").exists(), "nothing was started"


@pytest.mark.slow
def test_a_large_model_on_a_cpu_is_taken_where_that_is_allowed(large: str, tmp_path: Path) -> None:
    checked = echo_queue(tmp_path, "config", "check", "run.toml", text=large + "[learner]\nallow_cpu = true\n")
    assert "4.0 billion parameters" not in checked.stderr


@pytest.mark.slow
def test_a_run_whose_first_group_comes_too_late_is_refused(tmp_path: Path) -> None:
    done = echo_queue(tmp_path, "config", "check", "run.toml", text=RUN.replace("4096", "32768"))
    assert done.returncode == 2
    assert "the first group may take 655 s" in done.stderr
    assert "→ set 1311 or more" in done.stderr
