"""Each configuration in configs/ can be started: it has no problem, and its model is one that is known."""

import asyncio
import json
import re
import runpy
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from echo_queue.capacity.estimate import Assumptions, estimate
from echo_queue.capacity.estimate.shared_card import learner_needs
from echo_queue.cli.run.config import examine
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.fleet.invitation import machine
from echo_queue.models import model_shape
from echo_queue.submission.sources.registry import open_source
from tests.models import MODELS
from workers.environments.math import Math
from workers.environments.protocol import ScoringRequest

CONFIGS = Path(__file__).parents[2] / "configs"
MODEL_FILES = {f"Qwen/Qwen3-{size.upper()}": MODELS / f"qwen3-{size}.json" for size in ("0.6b", "4b", "8b")}
MADE = {"runs/smollm2/base": MODELS / "smollm2-135m.json"}
"""Models that a recipe makes."""
ELSEWHERE = re.compile(r"other machines?|spot machines?|on the others,")
GSM8K = [
    ("How many eggs are 6 dozen?", "A dozen is <<12=12>>12.\n6 dozen are <<6*12=72>>72.\n#### 72"),
    ("How many are 1,234 and none?", "#### 1,234"),
]


@pytest.fixture(params=sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.mark.parametrize("gpus", [0, 1])
def test_it_has_no_problems(gpus: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what its users must bring is missing: prompts that a script writes, vLLM, torch for GPUs, and servers."""
    here = [machine.Gpu("0", "NVIDIA H100 80GB HBM3", 80 << 30, "580.65")] * gpus
    monkeypatch.setattr(machine, "torch_cuda", lambda: 12 if gpus else None)
    monkeypatch.setattr(machine, "gpus", lambda: here)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    config: Config = load(path, {})
    brought = {str(tmp_path / config.prompts.source), "rollout.engine" if config.rollout.engine == "vllm" else ""}
    brought |= {str(tmp_path / evaluation.source) for evaluation in config.evaluation}
    brought |= {"model.base"} if config.model.base in MADE else set()
    brought |= {"learner.device"} if config.learner.device == "cuda" else set()
    brought |= {"redis.url", "store.url"} if config.redis.url != EMBEDDED else set()
    assert {problem.where for problem in examine(path).problems} <= brought


def header(path: Path) -> str:
    """Returns the comment with which a configuration begins, which says how it is run."""
    return path.read_text(encoding="utf-8").partition("\n\n")[0]


def commands(path: Path) -> list[tuple[str, str]]:
    """Returns the subcommands of `echo-queue` in the recipe, each with the file that it names, if it names one."""
    return re.findall(r"echo-queue ([a-z-]+)(?: (configs/[\w.-]+\.toml))?", header(path))


def device_of(path: Path) -> str:
    found = re.search(r"--device (\w+)", header(path))
    return found[1] if found else ""


def test_it_can_be_estimated_and_its_bound_holds(path: Path) -> None:
    """And the learner fits the device that the recipe names, with what a card needs besides."""
    config: Config = load(path, {})
    file, assumed = (MODEL_FILES | MADE).get(config.model.base), Assumptions(device=device_of(path))
    found = estimate(config, model_shape(config, file), assumed)
    needed = learner_needs(config, found.learner)
    assert not found.device.memory or needed <= found.device.usable < found.device.memory
    assert found.lag_of_these_workers.holds
    assert found.lag.publications_keep_up


def test_its_recipe_can_work(path: Path) -> None:
    """Embedded services serve their own machine alone; others are prepared, and need a user for each role."""
    config: Config = load(path, {})
    named = {name for name, _ in commands(path)}
    assert {file for _, file in commands(path) if file} == {f"configs/{path.name}"}
    embedded = config.redis.url == config.store.url == EMBEDDED
    assert embedded != bool(ELSEWHERE.search(header(path))), "embedded services, and machines that cannot reach them"
    if embedded:
        assert named & {"run", "services"} and "prepare" not in named
    else:
        assert {"redis-users", "prepare", "submit", "learner", "worker"} <= named
        assert not named & {"run", "services"}
        assert "{role}" in config.redis.username and EMBEDDED not in (config.redis.url, config.store.url)


def test_four_spot_l4s_serve_a_learner_on_one_h100() -> None:
    path = CONFIGS / "qwen3-4b-spot-l4.toml"
    config = load(path, {})
    found = estimate(config, model_shape(config, MODEL_FILES["Qwen/Qwen3-4B"]), Assumptions(device="h100"))
    assert config.rollout.workers == 4
    assert found.worker.engine < 0.9 * 22.5e9, "vLLM takes 0.92 of a card, and needs some of it for itself"
    assert found.workers_needed > 4 and 0 < found.idle_share < 1


def test_with_lora_8b_is_trained_on_one_card_of_48_gb() -> None:
    config = load(CONFIGS / "qwen3-8b-lora.toml", {})
    found = estimate(config, model_shape(config, MODEL_FILES["Qwen/Qwen3-8B"]), Assumptions(device="l40s"))
    assert max(found.learner.checkpointed_needed, found.worker.engine) < found.device.usable
    assert found.lag_of_these_workers.holds


def test_gsm8k_becomes_prompts_that_math_scores(tmp_path: Path) -> None:
    table = pyarrow.table({"question": [q for q, _ in GSM8K], "answer": [a for _, a in GSM8K]})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    script = runpy.run_path(str(CONFIGS / "gsm8k_prompts.py"))
    script["main"](tmp_path / "train.parquet", tmp_path / "gsm8k.jsonl")
    ((_, rows),) = open_source(str(tmp_path / "gsm8k.jsonl")).scan(10)
    assert [row.columns["answer"] for row in rows] == ["72", "1234"]
    written = json.loads((tmp_path / "gsm8k.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert written["prompt"][0]["content"].startswith("How many eggs are 6 dozen?\n\nSolve")
    for row, right in zip(rows, ("So there are 72 eggs: \\boxed{72}", "\\boxed{1,234}"), strict=True):
        completions = [right, "\\boxed{71}", "I do not know."]
        request = ScoringRequest(row.prompt, completions, [[0]] * 3, row.columns, ["stop"] * 3, [0] * 3)
        assert asyncio.run(Math().score(request, lambda _: None)).values == [1.0, 0.0, 0.0]


def test_an_answer_without_a_number_is_refused() -> None:
    script = runpy.run_path(str(CONFIGS / "gsm8k_prompts.py"))
    with pytest.raises(ValueError, match="no final answer"):
        script["row"]("Why?", "Because.")
