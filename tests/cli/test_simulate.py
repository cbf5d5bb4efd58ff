"""`echo-queue simulate`, as a process that has no torch."""

import json
import subprocess
from pathlib import Path

import pytest

from echo_queue.cli.plan.simulate import WIDTH
from tests.capacity.fleets import WORKED
from tests.cli.test_estimate import echo_queue

EXAMPLE = WORKED["qwen3-0.6b-spot"].read_text(encoding="utf-8")
SHORT = EXAMPLE.replace("[simulation]\n", "[simulation]\nupdates = 20\nwarm_up = 5\n")


def simulate(directory: Path, *options: object, text: str = SHORT) -> "subprocess.CompletedProcess[str]":
    (directory / "fleet.toml").write_text(text, encoding="utf-8")
    return echo_queue(directory, "simulate", "fleet.toml", *options)


@pytest.mark.slow
def test_each_bound_has_a_column_and_a_narrow_terminal_shows_all_of_it(tmp_path: Path) -> None:
    done = simulate(tmp_path, "--s", "1,2,4,8,12")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].count("S = ") == 5
    assert max(map(len, lines)) <= WIDTH
    assert "…" not in done.stdout


@pytest.mark.slow
def test_scripts_get_a_simulation_for_each_bound(tmp_path: Path) -> None:
    found = json.loads(simulate(tmp_path, "--s", "2,4", "--seed", 3, "--json").stdout)
    assert (found["seed"], [one["s"] for one in found["simulations"]]) == (3, [2, 4])


@pytest.mark.slow
def test_a_wrong_file_and_wrong_bounds_are_clear_errors(tmp_path: Path) -> None:
    text = SHORT.replace("t_train_s = { assumed = 5", "t_train_s = { assumed = 0").replace("burst_share", "burst_shar")
    wrong = simulate(tmp_path, text=text)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "learner.t_train_s" in wrong.stderr and "did you mean burst_share?" in wrong.stderr
    bounds = simulate(tmp_path, "--s", "many")
    assert bounds.returncode == 2 and "is not a list of bounds" in bounds.stderr
