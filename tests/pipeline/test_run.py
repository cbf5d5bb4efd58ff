"""`echo-queue run` from nothing to a trained model."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.pipeline.supervised_run import (
    PROMPTS,
    UPDATES,
    SupervisedRun,
    assert_every_prompt_was_trained_once,
    assert_tokens_are_no_older_than_their_groups,
    trained,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_run_from_nothing_ends_with_a_model_and_a_report(tmp_path: Path) -> None:
    """The mode is in-flight: weights change between tokens."""
    run = SupervisedRun(tmp_path, ECHO_QUEUE_ROLLOUT__MODE="in-flight")
    try:
        assert run.ends() == 0, run.told()
        _began_without_alarm(run)
        assert_every_prompt_was_trained_once(run)
        assert_tokens_are_no_older_than_their_groups(run)
        directory = run.config.run.dir
        assert [update.version for update in run.updates()] == list(range(1, UPDATES + 1))
        page = (directory / "report.html").read_text()
        told_of_bytes = any(update.store_bytes or update.peer_bytes for update in run.updates())
        assert page.count("<svg") == 18 + told_of_bytes, "a run may be over before a heartbeat tells what was read"
        # A run as short as this may be over before its second worker comes.
        assert re.search("[12] rollout workers?", page) and "rollout workers configured" not in page
        assert not [log.name for log in (directory / "logs").iterdir() if "%|" in log.read_text()], "progress bars"
        _tells_its_end(run)
        _generates(directory / "model")

        run.again()
        assert run.ends() == 0
        assert "is finished" in run.output.read_text().rpartition("submitted 80 =")[2]
    finally:
        run.stop()


@pytest.mark.proof(kind="whole runs", share=0.15)
def test_a_run_with_adapters_is_killed_and_ends_with_a_model_and_its_adapters(
    start: Callable[..., SupervisedRun],
) -> None:
    adapters = {"ECHO_QUEUE_MODEL__LORA__RANK": "4", "ECHO_QUEUE_MODEL__DTYPE": "bfloat16"}
    run = start(ECHO_QUEUE_ROLLOUT__WORKERS="1", **adapters)
    for moment, role in ((trained(7), "learner"), (trained(11), "worker")):
        run.until(moment)
        run.kill(role)
    assert run.ends() == 0, run.told()
    assert_every_prompt_was_trained_once(run)
    _generates(run.config.run.dir / "model")
    assert (run.config.run.dir / "model" / "adapter" / "adapter_model.safetensors").exists()


def _began_without_alarm(run: SupervisedRun) -> None:
    """Roles that load are not missing, and nothing is called training before there is somebody to train with."""
    lines = run.output.read_text().splitlines()
    phases = [re.sub(r"^\d+:\d\d  ", "", line).partition("  ")[0] for line in lines]
    training = phases.index("training")
    assert phases.index("loading the model") < training
    assert not [line for line in lines[:training] if "held up" in line]
    assert re.search(r"  workers [1-9]", lines[training])


def _tells_its_end(run: SupervisedRun) -> None:
    """The embedded services have ended, and yet the commands that look at the run answer."""
    document = orjson.loads(_answer(run, "status", "--json"))
    assert (document["phase"], document["queue"]["trained"], document["training"]["updates"]) == (
        "finished",
        PROMPTS,
        UPDATES,
    )
    assert "✓ submitted 80 = " in _answer(run, "audit")
    assert "as of its end" in _answer(run, "status")
    assert "as of its end" in _answer(run, "status", "--watch")


def _answer(run: SupervisedRun, *words: str) -> str:
    asked = run.asked(*words)
    assert asked.exit_code == 0, asked.output
    return asked.stdout


def _generates(folder: Path) -> None:
    """The model is a normal Hugging Face folder, read by a process that knows nothing of this project."""
    code = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer; "
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1]); "
        "print(m.generate(**t('1 + 1 =', return_tensors='pt', return_token_type_ids=False), max_new_tokens=4).shape)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=120, cwd=folder)
