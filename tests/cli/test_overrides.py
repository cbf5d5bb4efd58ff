"""A flag sets a key of the configuration for one command, and for all that it starts."""

import json
import re
import sys
from pathlib import Path

import pytest

from echo_queue.cli import main, overrides
from echo_queue.cli.commands import app, options_of
from echo_queue.errors import ConfigError

CONFIG = '[run]\nname = "t"\ndir = "runs/t"\n[prompts]\nset = "p"\nsource = "reasoning-gym:chain_sum"\n'


@pytest.mark.parametrize(
    ("words", "others", "variables"),
    [
        ("run a.toml --staleness.s=2", "run a.toml", {"ECHO_QUEUE_STALENESS__S": "2"}),
        ("run --model.lora.rank 8 a.toml", "run a.toml", {"ECHO_QUEUE_MODEL__LORA__RANK": "8"}),
        ("run a.toml --learner.lr -1", "run a.toml", {"ECHO_QUEUE_LEARNER__LR": "-1"}),
        ("run a.toml --prompts.source=", "run a.toml", {"ECHO_QUEUE_PROMPTS__SOURCE": ""}),
        ("run a.toml --run.name=a=b --run.name=c", "run a.toml", {"ECHO_QUEUE_RUN__NAME": "c"}),
        ("submit a.toml x.jsonl --set more -h", "submit a.toml x.jsonl --set more -h", {}),
    ],
)
def test_a_word_with_a_dot_after_two_dashes_is_a_key(words: str, others: str, variables: dict[str, str]) -> None:
    assert overrides.split(words.split()) == (others.split(), variables)


def test_a_key_without_a_value_is_told() -> None:
    with pytest.raises(ConfigError, match=r"--staleness\.s: has no value"):
        overrides.split(["run", "a.toml", "--staleness.s"])


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("run a.toml --lr=3", "write --learner.lr=VALUE"),
        ("run a.toml --batch-groups 4", "write --learner.batch_groups=VALUE"),
        ("run a.toml --url=x", "write --redis.url=VALUE or --store.url=VALUE"),
        ("submit a.toml --set more", ""),
        ("run a.toml --nonsense -- --lr=3", ""),
    ],
)
def test_a_key_without_its_section_is_told_with_it(words: str, fix: str) -> None:
    if not fix:
        overrides.refuse_bare_keys(words.split(), options_of(app))
        return
    with pytest.raises(ConfigError, match=re.escape(fix)):
        overrides.refuse_bare_keys(words.split(), options_of(app))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration; variables that a command sets do not outlive the test."""
    monkeypatch.chdir(tmp_path)
    for name in ("STALENESS__S", "STALENESS__SS", "PROMPTS__OPTIONS"):
        monkeypatch.setenv(f"ECHO_QUEUE_{name}", "1")
        monkeypatch.delenv(f"ECHO_QUEUE_{name}")
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def check(*words: str) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sys, "argv", ["echo-queue", "config", "check", "run.toml", *words])
        main()


@pytest.mark.usefixtures("folder")
def test_a_flag_wins_over_the_file_and_over_a_variable(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO_QUEUE_STALENESS__S", "1")
    check("--json", "--staleness.s=3", '--prompts.options={"seed": 1}')
    values = json.loads(capfd.readouterr().out)["config"]
    assert values["staleness"]["s"] == 3
    assert values["prompts"]["options"] == {"seed": 1}


@pytest.mark.usefixtures("folder")
def test_a_flag_for_no_key_is_told_as_the_files_would_be(capfd: pytest.CaptureFixture[str]) -> None:
    check("--staleness.ss=3", "--prompts.options={seed = 1}")
    told = capfd.readouterr().err
    assert "staleness.ss: unknown key" in told and "did you mean s?" in told


@pytest.mark.usefixtures("folder")
def test_a_flag_without_a_value_ends_the_command_with_2(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["echo-queue", "run", "run.toml", "--staleness.s"])
        main()
    assert ended.value.code == 2
    assert "→ write --staleness.s=VALUE" in capfd.readouterr().err
