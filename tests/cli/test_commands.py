"""The command line as its users meet it: processes, exit codes, what is printed where."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from echo_queue.cli.documents import StatusDocument
from echo_queue.cli.output import print_json
from echo_queue.reporting.metrics import summarise
from tests.cli.test_view import STATUS, UPDATES


def block(*packages: str) -> str:
    """Python that makes these packages look as if they were not installed."""
    return f"""
import importlib.util, sys
sys.modules.update(dict.fromkeys({packages!r}))
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {packages!r} else found(name, *rest)
"""


def echo_queue(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "echo_queue.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "echo_queue.cli.commands",
        "echo_queue.cli.run.start",
        "echo_queue.submission",
        "echo_queue.queue",
        "echo_queue.launch.supervisor",
    ],
)
def test_a_submitter_and_a_monitor_need_no_torch(module: str) -> None:
    code = block("torch", "transformers", "workers", "learner", "matplotlib") + f"import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [("config", "check"), ("healthy",)])
def test_help_at_80_columns_breaks_no_word(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = echo_queue(*command, "--help", cwd=tmp_path)
    words = set(re.findall(r"\w+", told.stdout))
    assert {"run", "worker", "learner", "submitter"} < words or {"worker", "learner", "controller"} < words
    assert not words & {"l", "earner", "submitte", "r"}


def test_an_unknown_role_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    told = echo_queue("healthy", "lerner", cwd=tmp_path)
    assert told.returncode == 2
    assert "is none of services, submission, worker, learner, controller" in " ".join(
        told.stderr.replace("│", "").split()
    )


@pytest.mark.slow
def test_help_names_every_command(tmp_path: Path) -> None:
    done = echo_queue("--help", cwd=tmp_path)
    for command in (
        "run",
        "services",
        "submit",
        "worker",
        "learner",
        "notices",
        "redis-users",
        "status",
        "audit",
        "metrics",
        "figures",
        "bury",
        "revive",
        "init-model",
        "estimate",
        "plan",
        "simulate",
        "config",
    ):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize("asked", [("--version",), ("-h",), ("run", "-h")])
def test_the_version_and_short_help_are_where_people_look_for_them(tmp_path: Path, asked: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "echo_queue", *asked],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"echo-queue {version('echo-queue')}" in done.stdout or "Usage:" in done.stdout


def test_a_status_can_be_printed_for_scripts(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    figures, newest = summarise(UPDATES), replace(UPDATES[-1], t_bcast_s=0.0)
    print_json(StatusDocument("r", "running", "0.1.0", "", STATUS, figures, figures, newest, (), (), (), (), ()))
    document = json.loads(capfdbinary.readouterr().out)
    assert (document["queue"]["learner"], document["queue"]["published"]["version"]) == ("1.40", "1.39")
    assert document["queue"]["workers"][0]["heartbeat"]["version"] == "1.40"
    assert document["training"]["lags"]["0"] > 0
    assert document["training"]["mean_lag"] == 0.75 and document["update"]["t_bcast_s"] is None, "not measured"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "services", "submit", "worker", "learner", "status", "audit", "init-model"])
def test_a_broken_config_is_one_clear_error_for_every_command(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.toml").write_text('[run]\nname = "t"\ndir = "out"\n[staleness]\ns = 0\nkappa = 3\nwindow = 1\n')
    done = echo_queue(command, "run.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "staleness.kappa: κ = 3 with S = 0" in done.stderr
    assert "staleness.window: unknown key" in done.stderr
    assert "→ set kappa to 1 or less, or s to 2 or more" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "logs").exists(), "nothing was started"


@pytest.mark.slow
def test_config_check_prints_json_for_scripts(tmp_path: Path) -> None:
    text = '[run]\nname = "t"\ndir = "out"\n[model]\nbase = "some/model"\n[rollout]\ngroup_size = 1\n'
    (tmp_path / "run.toml").write_text(text)
    done = echo_queue("config", "check", "run.toml", "--for", "learner", "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert done.returncode == 2
    assert [problem["where"] for problem in answer["problems"]] == ["rollout.group_size"]
    assert answer["config"]["run"]["name"] == "t"


@pytest.mark.slow
def test_config_check_is_content_with_a_good_file(tmp_path: Path) -> None:
    prompts = 'source = "reasoning-gym:chain_sum"\noptions = { size = 3, seed = 1 }\n'
    (tmp_path / "run.toml").write_text(f'[run]\nname = "t"\ndir = "out"\n[prompts]\n{prompts}')
    done = echo_queue("config", "check", "run.toml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no problems found" in done.stdout
    # The run has made updates since: it may need its source no more, and the file is still not praised.
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.jsonl").touch()
    gone = ("--prompts.source=gone.jsonl", "--prompts.options={}", "--model.base=some/model")
    done = echo_queue("config", "check", "run.toml", *gone, cwd=tmp_path)
    assert done.returncode == 0 and "gone.jsonl" in done.stderr
    assert "no problems" not in done.stdout and "1 warning above" in done.stdout
