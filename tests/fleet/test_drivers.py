"""The promises of every driver, on real processes, and the mistakes of a user's commands."""

import fcntl
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from echo_queue.fleet.drivers import CommandDriver, Driver, DriverError, LocalDriver, Quote
from echo_queue.fleet.drivers.command import Commands
from echo_queue.fleet.state import Machine
from tests.waiting import wait_until

ENDLESS = ("/bin/sh", "-c", "exec sleep 1000")
STUBBORN = ("/bin/sh", "-c", "trap '' TERM; while true; do sleep 0.05; done")
SCRIPT = """\
import pathlib, sys
from echo_queue.fleet.drivers import LocalDriver
folder, what, *words = sys.argv[1:]
driver = LocalDriver(pathlib.Path(folder), lambda name, pool: {command!r}, grace_s=0.0)
match what:
    case "up":
        sys.exit(0 if driver.start(*words) else 75)
    case "down":
        driver.end(words)
    case "list":
        import json
        print(json.dumps([dict(zip(("name", "pool"), (one.name, one.pool))) for one in driver.machines()]))
"""
"""A user's script that starts and ends processes."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "machines"
    killer = LocalDriver(tmp_path / "machines", lambda name, pool: ENDLESS, grace_s=0.0)

    def all_gone() -> bool:
        killer.end([one.name for one in killer.machines()])
        return not killer.machines()

    wait_until(all_gone, "the end of all machines")


def local(folder: Path, command: tuple[str, ...] = ENDLESS) -> Driver:
    return LocalDriver(folder, lambda name, pool: command, grace_s=0.0)


def commands(folder: Path, command: tuple[str, ...] = ENDLESS) -> Driver:
    script = folder.parent / "machines.py"
    script.write_text(SCRIPT.format(command=list(command)))
    words = (sys.executable, str(script), str(folder))
    return CommandDriver(Commands((*words, "up"), (*words, "down"), (*words, "list")), 60.0)


Make = Callable[..., Driver]
every_driver = pytest.mark.parametrize("make", [local, pytest.param(commands, marks=pytest.mark.slow)])


@every_driver
def test_a_name_is_started_once_listed_until_it_is_gone_and_never_started_again(make: Make, folder: Path) -> None:
    driver = make(folder)
    assert driver.machines() == ()
    driver.end(["unheard-of"])
    assert all([driver.start("spot-1", "spot"), driver.start("spot-1", "spot"), driver.start("rest-1", "rest")])
    assert set(driver.machines()) == {Machine("spot-1", "spot"), Machine("rest-1", "rest")}
    assert set(make(folder).machines()) == set(driver.machines()), "it is found by whoever comes next"
    driver.end(["spot-1"])
    driver.end(["spot-1"])
    wait_until(lambda: driver.machines() == (Machine("rest-1", "rest"),), "the end of one")
    assert driver.start("spot-1", "spot")
    assert driver.machines() == (Machine("rest-1", "rest"),), "its name is used"
    assert driver.offers() == {}


@every_driver
def test_a_machine_that_does_not_end_is_ended_by_force(make: Make, folder: Path) -> None:
    driver = make(folder, STUBBORN)
    driver.start("spot-1", "spot")

    def ended() -> bool:
        driver.end(["spot-1"])
        return driver.machines() == ()

    wait_until(ended, "its end")


def test_controllers_that_list_at_once_take_each_other_for_no_machine(folder: Path) -> None:
    driver = local(folder, ("/bin/true",))
    driver.start("a", "pool")
    wait_until(lambda: not driver.machines(), "its end")
    with (folder / "pool" / "a" / "lock").open() as another:
        fcntl.flock(another, fcntl.LOCK_SH)
        assert driver.machines() == ()


def test_a_machine_that_dies_is_listed_no_longer(folder: Path) -> None:
    driver = local(folder, ("/bin/true",))
    driver.start("spot-1", "spot")
    wait_until(lambda: driver.machines() == (), "its end")


def shell(*, up: str = "true", down: str = "true", listed: str = "echo '[]'", offers: str = "") -> CommandDriver:
    words = [("/bin/sh", "-c", line) for line in (up, down, listed)]
    return CommandDriver(Commands(*words, ("/bin/sh", "-c", offers) if offers else ()), 0.5)


def test_a_command_says_that_no_machine_can_be_had_by_its_exit_code() -> None:
    assert not shell(up="exit 75").start("spot-1", "spot")


def test_offers_are_prices_and_numbers_of_now() -> None:
    printed = """echo '{"spot": {"usd_per_hour": 0.3, "available": 4, "note": "x"}, "rest": {}}'"""
    assert shell(offers=printed).offers() == {"spot": Quote(0.3, 4), "rest": Quote(None, None)}


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (shell(listed="echo throttled >&2; exit 1"), "throttled"),
        (shell(listed="""echo '[{"name": "spot-1"}]'"""), "pool"),
        (shell(listed="echo spot-1"), "json"),
        (shell(listed="sleep 60"), "0.5 s"),
        (CommandDriver(Commands(("./up",), ("./down",), ("./nowhere",)), 1.0), "No such file"),
    ],
)
def test_an_answer_that_nobody_understands_says_nothing_and_names_the_command(driver: CommandDriver, said: str) -> None:
    with pytest.raises(DriverError, match=said) as refused:
        driver.machines()
    assert refused.value.problems[0].where == "controller.list"


def test_an_order_that_fails_is_an_error_and_no_refusal() -> None:
    broken = shell(up="exit 2", down="exit 2")
    for act in (partial(broken.start, "spot-1", "spot"), partial(broken.end, ["spot-1"])):
        with pytest.raises(DriverError, match="exit code 2"):
            act()
