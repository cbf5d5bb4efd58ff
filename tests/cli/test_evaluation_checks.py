"""`config check` checks each evaluation as it does what is trained, and tells in one line when it is asked."""

import json
import sys
from pathlib import Path

import pytest

from echo_queue.cli import main
from echo_queue.cli.run import preflight
from echo_queue.cli.run.preflight import For
from echo_queue.config.loading import load
from echo_queue.errors import Problem

RUN = (
    '[run]\nname = "t"\ndir = "runs/t"\n[model]\nbase = "some/model"\n'
    '[prompts]\nset = "p"\nsource = "train.jsonl"\n[environment]\nkind = "math"\n'
)
FIRST = '[[evaluation]]\nname = "first"\nsource = "first.jsonl"\n'
SECOND = '[[evaluation]]\nname = "second"\nsource = "second.jsonl"\nsamples = 2\nevery_updates = 0\n'
JUDGED = '[evaluation.environment]\nkind = "function"\nfunction = "judge:{}"\n'
JUDGE = "def right(prompts, completions, level, **columns): return [0.0 for _ in completions]\n"
ROWS = {
    "train": [{"prompt": "1 + 1", "answer": "2"}, {"prompt": "2 + 2", "answer": "4"}],
    "first": [{"prompt": "1 + 2", "answer": "3"}],
    "second": [{"prompt": "Say what you like", "level": 1}],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").write_text(JUDGE)
    return tmp_path


def configured(evaluations: str, **rows: list[dict[str, object]]) -> Path:
    for name, given in (ROWS | rows).items():
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    Path("run.toml").write_text(RUN + evaluations)
    return Path("run.toml")


def problems(evaluations: str, role: For = For.run, **rows: list[dict[str, object]]) -> dict[str, Problem]:
    config = load(configured(evaluations, **rows), {})
    return {problem.where: problem for problem in preflight.problems(config, role)}


def test_evaluations_that_fit_their_environments_are_fine() -> None:
    assert not problems(FIRST + SECOND + JUDGED.format("right"))


@pytest.mark.parametrize(
    ("evaluations", "where", "what"),
    [
        (SECOND, "evaluation[0].environment.kind", "math compares with a column answer or solution"),
        (FIRST + SECOND, "evaluation[1].environment.kind", "the prompts have level"),
        (FIRST + JUDGED.format("right"), "evaluation[0].environment.function", "needs the columns level"),
        (FIRST + SECOND + JUDGED.format("rigth"), "evaluation[1].environment.function", "judge.py defines no rigth"),
        (FIRST.replace("first.jsonl", ""), "evaluation[0].source", "no source is named"),
        (FIRST + "options = { size = 3 }", "evaluation[0].options", "mean nothing to the file first.jsonl"),
    ],
)
def test_an_evaluation_that_cannot_be_asked_is_named_with_its_number(evaluations: str, where: str, what: str) -> None:
    found = problems(evaluations)
    assert list(found) == [where]
    assert what in found[where].what


def test_code_that_only_an_evaluation_names_is_looked_for_where_workers_are() -> None:
    nowhere = SECOND + JUDGED.format("rigth")
    assert "evaluation[0].environment.function" in problems(nowhere, For.worker)
    assert not problems(nowhere, For.learner)


def check(path: Path, *words: str) -> int:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["echo-queue", "config", "check", str(path), *words])
        main()
    return int(str(ended.value.code))


def test_config_check_tells_when_each_evaluation_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    path = configured(FIRST + "every_s = 600\n" + SECOND + JUDGED.format("right"))
    assert check(path, "--for", "submitter") == 0
    assert capfd.readouterr().out.splitlines()[1:3] == [
        "✓ evaluation first: 1 answer to each prompt of first.jsonl, before the first update, every 20 updates or "
        "10 min 00 s, and at the end",
        "✓ evaluation second: 2 answers to each prompt of second.jsonl, before the first update and at the end",
    ]


def test_prompts_that_are_held_out_and_trained_are_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    path = configured(FIRST, first=[*ROWS["first"], *ROWS["train"]])
    assert check(path, "--for", "submitter", "--json") == 0
    warnings = json.loads(capfd.readouterr().out)["warnings"]
    assert [(one["where"], one["what"]) for one in warnings if one["where"] != "services"] == [
        ("evaluation[0].source", "2 of the first 3 of first are also in p, and trained")
    ]
