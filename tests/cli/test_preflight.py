"""`config check` finds what would end a run here, before any process starts, and names the fix."""

import json
import socket
from pathlib import Path

import pytest

from echo_queue.cli.run import preflight
from echo_queue.cli.run.preflight import For
from echo_queue.config.loading import load
from echo_queue.errors import Problem
from echo_queue.fleet.invitation import machine
from echo_queue.launch.supervisor import lock
from echo_queue.models import config_file
from echo_queue.submission.length_limits import limits_of
from tests.forbidden import forbidden
from tests.servers.ports import free_port

REWARDS = """
import math
from collections import Counter as counted
def right(prompts, completions, answer, **columns): return [0.0 for _ in completions]
async def kept(completions, *, answer, level=1, **columns): return [0.0 for _ in completions]
def narrow(prompts, completions): return [0.0 for _ in completions]
class Room: ...
"""
CPU = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None"
Given = tuple[str, dict[str, str]]


def problems(folder: Path, rows: object, role: For = For.run, **keys: str) -> dict[str, Problem]:
    """Returns the problems of a run with these rows of prompts. `keys`: `section__key` and its value."""
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))  # type: ignore[attr-defined]
    path = folder / "run.toml"
    path.write_text('[run]\nname = "t"\ndir = "runs/t"\n[prompts]\nset = "p"\nsource = "prompts.jsonl"\n')
    given = {"model__base": "some/model"} | keys
    config = load(path, {f"ECHO_QUEUE_{key.upper()}": value for key, value in given.items()})
    return {problem.where: problem for problem in preflight.problems(config, role)}


ROWS = [{"prompt": "1 + 1", "answer": "2", "level": 1}, {"prompt": "2 + 2", "answer": "4"}]
FUNCTION = {"environment__kind": "function"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("function", ["right", "kept", "counted", "math"])
def test_a_function_that_fits_its_prompts_is_fine(folder: Path, function: str) -> None:
    assert not problems(folder, ROWS, **FUNCTION, environment__function=f"rewards:{function}")


@pytest.mark.parametrize(
    ("function", "rows", "what", "fix"),
    [
        ("reward:right", ROWS, "there is no module reward", "in the folder of that file"),
        ("rewards:rigth", ROWS, "rewards.py defines no rigth", "did you mean right?"),
        ("rewards:nothing", ROWS, "rewards.py defines no nothing", "name one of: Room, counted"),
        ("rewards:right", [{"prompt": "1 + 1"}], "needs the columns answer; the prompts have no column", "rename"),
        ("rewards:kept", [{"prompt": "1", "solution": "1"}], "needs the columns answer; the prompts have solution", ""),
        ("rewards:Room", ROWS, "rewards:Room is a class", "an instance that can be called"),
        ("rewards:narrow", ROWS, "does not take answer, completion_ids, trainer_state", "add **columns"),
    ],
)
def test_a_function_that_cannot_work_is_named(folder: Path, function: str, rows: object, what: str, fix: str) -> None:
    problem = problems(folder, rows, **FUNCTION, environment__function=function)["environment.function"]
    assert what in problem.what
    assert fix in problem.fix


def test_a_column_with_a_name_that_every_function_gets_is_named(folder: Path) -> None:
    rows = [row | {"completions": "x"} for row in ROWS]
    told = problems(folder, rows, **FUNCTION, environment__function="rewards:right")["prompts.source"]
    assert "a column completions, a name" in told.what and told.fix == "rename that column"


@pytest.mark.parametrize(
    "body",
    [
        "return 1.0 if completions else [1.0]",
        "if not completions:\n        return None\n    return [1.0]",
        "def inner():\n        yield 1.0\n    return list(inner())",
        "return float",
        "return score(completions)",
        "return completions == answer",
    ],
)
def test_what_may_be_a_list_of_rewards_is_left_to_the_first_call(folder: Path, body: str) -> None:
    (folder / "others.py").write_text(f"def right(completions, answer, **columns):\n    {body}\n")
    assert not problems(folder, ROWS, **FUNCTION, environment__function="others:right")


@pytest.mark.parametrize(
    "text",
    [
        "def right(prompts, completions, reference, **columns): ...\nif True:\n    def right(**columns): ...\n",
        "def right(prompts, completions, reference, **columns): ...\nright, other = print, len\n",
        "def right(prompts=(), /, completions=(), answer=1, **columns): ...\n",
        "try:\n    from elsewhere import right\nexcept ImportError:\n    def right(reference): ...\n",
    ],
    ids=["in an if", "one of a tuple", "defaults before the slash", "in a try"],
)
def test_a_function_of_which_the_text_does_not_tell_the_columns_is_left_to_the_workers(folder: Path, text: str) -> None:
    (folder / "others.py").write_text(text)
    assert not problems(folder, ROWS, **FUNCTION, environment__function="others:right")


def test_a_module_of_a_folder_without_an_init_is_not_taken_for_another_of_its_name(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "others.py").write_text("def right(prompts, completions, **columns): ...\n")
    (folder / "others.py").write_text("def right(prompts, completions, reference, **columns): ...\n")
    assert not problems(folder, ROWS, **FUNCTION, environment__function="mine.others:right")


def test_a_loss_that_is_not_there_is_named(folder: Path) -> None:
    assert not problems(folder, ROWS, **FUNCTION, environment__function="rewards:right", learner__loss="rewards:right")
    told = problems(folder, ROWS, **FUNCTION, environment__function="rewards:right", learner__loss="rewards:rigth")
    assert told["learner.loss"].fix == "did you mean right?"


def test_a_learner_for_gpus_needs_a_torch_for_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"environment__kind": "math", "learner__device": "cuda"}
    for text, told in (("cuda: Optional[str] = '12.8'", False), ("hip: Optional[str] = '6.4'", False), (CPU, True)):
        monkeypatch.setattr(machine, "_torch_version", lambda text=text: text)
        assert ("learner.device" in problems(folder, ROWS, **wanted)) == told
    assert "learner.device" not in problems(folder, ROWS, environment__kind="math", learner__device="auto")
    assert "learner.device" not in problems(folder, ROWS, For.worker, **wanted)


def test_a_revision_is_of_a_hub_model_alone(folder: Path) -> None:
    hub = {"environment__kind": "math", "model__revision": "v1", "model__base": "somebody/tiny"}
    assert not problems(folder, ROWS, **hub)
    (folder / "somebody/tiny").mkdir(parents=True)
    assert "no hub model" in problems(folder, ROWS, **hub)["model.revision"].what


def test_a_module_that_is_not_python_is_named_with_its_line(folder: Path) -> None:
    (folder / "broken.py").write_text("def right(:\n")
    told = problems(folder, ROWS, **FUNCTION, environment__function="broken:right")["environment.function"]
    assert "line 1" in told.what


def test_math_needs_a_column_to_compare_with(folder: Path) -> None:
    assert not problems(folder, ROWS, environment__kind="math")
    told = problems(folder, [{"prompt": "1 + 1", "result": "2"}], environment__kind="math")["environment.kind"]
    assert "column answer or solution; the prompts have result" in told.what


@pytest.mark.parametrize("source", ["prompts.jsonl", "hf:./folder", "s3://bucket/prompts.jsonl"])
@pytest.mark.parametrize("role", [For.run, For.learner])
def test_no_model_is_made_for_prompts_that_are_there_already(folder: Path, source: str, role: For) -> None:
    found = problems(folder, ROWS, role, environment__kind="math", model__base="init", prompts__source=source)
    assert f"prompts.source is '{source}'" in found["model.base"].what


def test_a_model_is_made_for_prompts_of_code_and_the_submitter_needs_none(folder: Path) -> None:
    generated = {"prompts__source": "reasoning-gym:number_sorting", "environment__kind": "reasoning-gym"}
    assert "model.base" not in problems(folder, ROWS, model__base="init", **generated)
    assert "model.base" not in problems(folder, ROWS, For.submitter, model__base="init", environment__kind="math")


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (None, "is no folder on this machine"),
        ([], "has no config.json"),
        (["config.json", "model.safetensors"], "has no tokenizer"),
        (["config.json", "tokenizer.json"], "has no weights"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(folder: Path, files: list[str] | None, what: str) -> None:
    if files is not None:
        (folder / "model").mkdir()
        for name in files:
            (folder / "model" / name).write_text("{}")
    assert what in problems(folder, ROWS, environment__kind="math", model__base="./model")["model.base"].what


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        ("", "{}", "no source is named"),
        ("openai/gsm8k", "{}", "is not a source of prompts"),
        ("none.jsonl", "{}", "cannot be read"),
        ("reasoning-gym:no_such_set", "{seed = 1}", "no_such_set"),
    ],
)
def test_a_source_that_cannot_be_read_is_found(folder: Path, source: str, options: str, told: str) -> None:
    given = {"prompts__source": source, "prompts__options": options}
    [problem] = problems(folder, ROWS, environment__kind="math", **given).values()
    assert told in str(problem)


def test_each_machine_is_asked_for_what_it_does_alone(folder: Path) -> None:
    wrong = {"environment__kind": "function", "environment__function": "none:none", "prompts__source": "none.jsonl"}
    prompts, function = str(folder / "none.jsonl"), "environment.function"
    asked = {For.run: {prompts, function}, For.worker: {function}, For.learner: set(), For.submitter: {prompts}}
    assert {role: set(problems(folder, ROWS, role, **wrong)) for role in For} == asked


def test_a_model_in_a_folder_of_another_user_is_told_and_no_traceback(folder: Path) -> None:
    home = folder / "another"
    (home / "base").mkdir(parents=True)
    (home / "base" / "config.json").write_text("{}")
    problems(folder, ROWS)
    config = load(folder / "run.toml", {"ECHO_QUEUE_MODEL__BASE": str(home / "base")})
    assert config_file.find(config) and limits_of(home / "base", tokens=64) is None
    with forbidden(home):
        assert config_file.find(config) is None and limits_of(home / "base", tokens=64) is None
        told = next(preflight.problems(config, For.learner))
    assert (told.where, told.what) == ("model.base", f"this user may not enter {home / 'base'}, or a folder above it")


def test_a_port_that_is_taken_is_named_unless_this_run_goes_on(folder: Path) -> None:
    second = free_port()
    with socket.create_server(("", second)):
        keys = {"weights__peer_port": str(second - 1), "rollout__workers": "2"}
        told = problems(folder, ROWS, **keys)["weights.peer_port"]
        assert told.what == f"{second} cannot be used here: Address already in use"
        assert "weights.peer_port" not in problems(folder, ROWS, For.worker, **keys)
        (folder / "runs" / "t").mkdir(parents=True)
        with lock(folder / "runs" / "t", deadline_s=0):
            assert "weights.peer_port" not in problems(folder, ROWS, **keys)
