"""`echo-queue plan` as its users meet it: a table, a document, files, and one clear error for what is missing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from echo_queue.capacity.loading import EXAMPLE, load_fleet
from echo_queue.cli.plan.fleet_plan import show
from echo_queue.errors import ConfigError
from tests.capacity.fleets import ON, ROOT, SMALL, WORKED
from tests.cli.test_commands import block

SHOWN = "qwen3-0.6b-spot"
"""The worked fleet that docs/capacity.md shows."""


def echo_queue(directory: Path, *arguments: object, missing: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (directory / "fleet.toml").write_text(SMALL, encoding="utf-8")
    code = block("torch", *missing) + "from echo_queue.cli import main; main()"
    command = [sys.executable, "-c", code, "plan", "fleet.toml", "--on", str(ON), *map(str, arguments)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_scripts_get_a_document_and_terraform_its_pools_file(tmp_path: Path) -> None:
    done = echo_queue(tmp_path, "--json", "--pools", "pools.json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    pools = json.loads((tmp_path / "pools.json").read_text(encoding="utf-8"))["pools"]
    assert document["chosen"]["machines"] == {"good": pools["good"]["machines"]}


def test_a_runs_configuration_is_no_fleet_file() -> None:
    with pytest.raises(ConfigError, match=r"is a run's configuration, not a fleet file(.|\n)*copy (.*\.toml)") as told:
        load_fleet(ROOT / "configs" / "quickstart.toml", ON)
    assert (ROOT / EXAMPLE).is_file() and len(told.value.problems) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("package", "arguments"), [("scipy", ()), ("matplotlib", ("--plot", "costs.svg"))])
def test_a_missing_package_is_one_clear_error(tmp_path: Path, package: str, arguments: tuple[str, ...]) -> None:
    done = echo_queue(tmp_path, *arguments, missing=(package,))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"needs {package}" in done.stderr and "echo-queue[plan]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_plot_is_a_picture_that_needs_no_page(tmp_path: Path) -> None:
    done = echo_queue(tmp_path, "--plot", "costs.svg")
    assert done.returncode == 0, done.stderr
    picture = (tmp_path / "costs.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg") and "--blue: #" in picture and "USD per update" in picture


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKED)
def test_a_worked_fleet_is_explained_on_80_columns_and_the_document_has_what_is_printed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What docs/capacity.md shows of a fleet is what the command prints, to the last figure."""
    show(WORKED[name], ON, as_json=False, pools=None, picture=None)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert_explained(printed)
    if name == SHOWN:
        text = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
        _, _, rest = text.partition(f"$ echo-queue plan configs/fleets/{name}.toml --on {ON}\n")
        assert trimmed(rest.partition("\n```")[0]) == trimmed(printed)


def assert_explained(printed: str) -> None:
    """Each mark in the tables has its sentence, and the text of an assumption goes on below its beginning."""
    assert bool(re.search(r"\d%!", printed)) == ("! The learner is busy for less than the " in printed)
    _, _, assumptions = printed.partition("Assumed, and what an update costs")
    assert (" – " in assumptions) == ("– With such a value nothing can be planned." in assumptions)
    rows = [line for line in assumptions.splitlines()[2:] if line.strip()]
    table = rows[: next(at for at, line in enumerate(rows) if line.startswith(("–", "These", "--json")))]
    assert all(re.match(r"  \S|[a-z_]+\.\S+ +[\d.e+-]+ ", line) for line in table), table


def trimmed(text: str) -> list[str]:
    """The lines without blanks at their ends."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
