"""`echo-queue fleet` says what is missing before it does anything, and shows and pauses a fleet."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo_queue.capacity.fleet import Controller
from echo_queue.cli.commands import app
from echo_queue.errors import ConfigError
from echo_queue.fleet.controller import limits_of
from echo_queue.fleet.drivers import CommandDriver, LocalDriver
from echo_queue.fleet.opening import open_driver
from tests.cli.test_weights import PublishedRun
from tests.fleet.fleet_harness import fleet_of
from tests.queue.clients import Clients


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishedRun]:
    run = PublishedRun(tmp_path_factory.mktemp("fleet"))
    yield run
    run.services.stop()


def said(*words: object) -> str:
    done = CliRunner().invoke(app, ["fleet", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_fleet_is_shown_and_paused(run: PublishedRun) -> None:
    assert said(run.path).startswith("nobody leads the fleet\n")
    controller = Clients.connected_as(run.config, "controller").controller("c1")
    controller.lead(60.0)
    controller.plan(b"", {"spot": 2})
    said(run.path, "--pause")
    assert "c1 leads" in said(run.path) and "paused" in said(run.path)
    shown = json.loads(said(run.path, "--json"))
    assert (shown["leader"], shown["paused"], shown["wanted"]) == ("c1", True, {"spot": 2})
    said(run.path, "--resume")
    assert "paused" not in said(run.path)


def test_a_file_names_its_driver_and_all_of_its_commands(run: PublishedRun) -> None:
    assert isinstance(open_driver(run.config, run.path, Controller()), LocalDriver)
    whole = Controller(driver="command", up=("up",), down=("down",), list=("list",))
    assert isinstance(open_driver(run.config, run.path, whole), CommandDriver)
    with pytest.raises(ConfigError) as refused:
        open_driver(run.config, Path("run.toml"), Controller(driver="command", up=("up",)))
    assert [problem.where for problem in refused.value.problems] == ["controller.down", "controller.list"]


def test_the_learners_price_is_part_of_the_budget() -> None:
    fleet = fleet_of({"spot": 1.0}, usd=9.0, machines=3)
    fleet = fleet.model_copy(update={"budget": fleet.budget.model_copy(update={"usd_per_hour": 5.0})})
    limits = limits_of(fleet)
    assert (limits.usd_per_hour, limits.usd, limits.machines) == (4.0, 9.0, 3)
