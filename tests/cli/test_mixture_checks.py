"""`config check` checks each component as it does [prompts], and shows its share and its first prompts."""

from pathlib import Path

import pytest

from tests.cli.test_evaluation_checks import RUN, check, configured, folder, problems

__all__ = ["folder"]
MIXTURE = """[[mixture]]
name = "sums"
weight = 3
source = "train.jsonl"
environment = { kind = "math" }

[[mixture]]
name = "talk"
source = "second.jsonl"
environment = { kind = "function", function = "judge:right" }

[[mixture]]
name = "later"
environment = { kind = "math" }
"""


@pytest.fixture(autouse=True)
def without_prompts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of these tests has components in place of [prompts] and of [environment]."""
    monkeypatch.setattr("tests.cli.test_evaluation_checks.RUN", RUN.partition("[prompts]")[0])


def test_components_that_fit_their_environments_are_fine() -> None:
    assert not problems(MIXTURE)


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("judge:right", "judge:rigth", "mixture[1].environment.function", "judge.py defines no rigth"),
        ("second.jsonl", "first.jsonl", "mixture[1].environment.function", "needs the columns level"),
        ("train.jsonl", "second.jsonl", "mixture[0].environment.kind", "math compares with a column answer"),
        ('"train.jsonl"', '"train.jsonl"\noptions = { size = 3 }', "mixture[0].options", "mean nothing to the file"),
    ],
)
def test_a_component_that_cannot_be_trained_is_named_with_its_number(old: str, new: str, where: str, what: str) -> None:
    found = problems(MIXTURE.replace(old, new))
    assert list(found) == [where]
    assert what in found[where].what


def test_the_packages_of_an_environment_that_nothing_has_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo_queue.cli.run.preflight.find_spec", lambda name: name != "reasoning_gym" or None)
    assert not problems(MIXTURE)
    assert "environment.kind" in problems(MIXTURE.replace('later"\nenvironment = { kind = "math" }', 'later"'))


def test_a_mixture_without_prompts_is_told_before_anything_starts() -> None:
    later = MIXTURE[MIXTURE.index('[[mixture]]\nname = "later"') :]
    assert list(problems(later)) == ["mixture"]


def test_config_check_shows_each_components_share_and_first_prompts(capfd: pytest.CaptureFixture[str]) -> None:
    assert check(configured(MIXTURE), "--for", "submitter") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[1:4] == [
        "✓ component sums: 60.0% of the prompts, from train.jsonl",
        "✓ component talk: 20.0% of the prompts, from second.jsonl",
        "✓ component later: 20.0% of the prompts, of sets that are submitted later",
    ]
    assert lines[4:] == [
        "  prompt 1 of sums, as the model reads it:",
        "    | 1 + 1",
        "  prompt 2 of sums, as the model reads it:",
        "    | 2 + 2",
        "  prompt 1 of talk, as the model reads it:",
        "    | Say what you like",
    ]


def test_code_that_only_a_component_names_is_looked_for_where_workers_are(folder: Path) -> None:
    (folder / "judge.py").unlink()
    assert "mixture[1].environment.function" in problems(MIXTURE)
