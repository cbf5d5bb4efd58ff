"""`echo-queue fleet` says what is missing before it does anything, and shows and pauses a fleet."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from echo_queue.cli.commands import app
from echo_queue.errors import ConfigError
from echo_queue.fleet.controller import limits_of
from echo_queue.fleet.drivers import CommandDriver, Driver, GroupDriver, LocalDriver
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


def test_a_file_names_its_driver_and_all_that_it_needs(run: PublishedRun) -> None:
    def driver(**settings: object) -> Driver:
        return open_driver(run.config, run.path, fleet_of({"spot": 1.0}, **settings), act=False)

    def missing(**settings: object) -> list[str]:
        with pytest.raises(ConfigError) as refused:
            driver(**settings)
        return [problem.where for problem in refused.value.problems]

    assert isinstance(driver(driver="local"), LocalDriver)
    assert isinstance(driver(driver="command", up=("up",), down=("down",), list=("list",)), CommandDriver)
    assert missing(driver="command", up=("up",)) == ["controller.down", "controller.list"]
    cluster = {"driver": "kubernetes", "api": "http://127.0.0.1:8001", "namespace": "runs"}
    assert isinstance(driver(**cluster, release="demo"), GroupDriver)
    assert missing(**cluster) == ["controller.release"]


def test_the_learners_price_is_part_of_the_budget() -> None:
    fleet = fleet_of({"spot": 1.0}, usd=9.0, machines=3)
    fleet = fleet.model_copy(update={"budget": fleet.budget.model_copy(update={"usd_per_hour": 5.0})})
    limits = limits_of(fleet)
    assert (limits.usd_per_hour, limits.usd, limits.machines) == (4.0, 9.0, 3)
