"""The promises of every driver, on real processes and on servers that stand for clouds; the mistakes of commands."""

import fcntl
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import IO

import pytest

from echo_queue import failpoints
from echo_queue.fleet.drivers import CommandDriver, DriverError, Quote
from echo_queue.fleet.drivers.command import Commands
from echo_queue.fleet.drivers.local import LocalDriver
from tests.fleet.places.instances import Instances
from tests.fleet.places.place import Place
from tests.fleet.places.pods import Pods
from tests.fleet.places.processes import Processes, Scripts, local
from tests.killer import Killed, Killer
from tests.waiting import wait_until

STUBBORN = ("/bin/sh", "-c", "trap '' TERM; while true; do sleep 0.05; done")
PLACES: dict[str, type[Place]] = {"local": Processes, "command": Scripts, "kubernetes": Pods, "aws": Instances}
SLOW_COMMAND, SLOW_AWS = (pytest.param(kind, marks=pytest.mark.slow) for kind in ("command", "aws"))
ON_AWS = pytest.mark.proof(kind="troubles of a controller", share=0.05)


@pytest.fixture(params=["local", SLOW_COMMAND, "kubernetes", SLOW_AWS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with PLACES[request.param].opened(tmp_path) as place:
        yield place


def test_a_name_is_started_once_listed_until_it_is_gone_and_never_started_again(place: Place) -> None:
    driver = place.driver()
    assert driver.machines() == ()
    driver.end(["unheard-of"])
    assert all([driver.start("spot-1", "spot"), driver.start("spot-1", "spot"), driver.start("rest-1", "rest")])
    assert place.listed() == {("spot-1", "spot"), ("rest-1", "rest")}, "from the return of start on"
    place.until_up(2)
    assert place.listed() == {("spot-1", "spot"), ("rest-1", "rest")}, "it is found by whoever comes next"
    driver.end(["spot-1"])
    driver.end(["spot-1"])
    wait_until(lambda: place.listed() == {("rest-1", "rest")}, "the end of one")
    assert driver.start("spot-1", "spot")
    place.until_up(1)
    assert place.listed() == {("rest-1", "rest")}, "its name is used"
    assert place.ever() == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "kubernetes", pytest.param("aws", marks=ON_AWS)])
def test_a_driver_may_die_after_each_of_its_steps_and_nothing_is_started_or_ended_twice(
    kind: str, tmp_path: Path
) -> None:
    """The next controller repeats the call that was cut off."""
    struck, steps = [""], 0
    while struck[-1] or not steps:
        steps += 1
        with PLACES[kind].opened(tmp_path / str(steps)) as place, ExitStack() as last:
            last.callback(setattr, failpoints, "observer", None)
            failpoints.observer = killer = Killer(steps)
            calls = [partial(place.driver().start, name, "spot") for name in ("a", "b", "c")]
            for call in (*calls, partial(place.until_up, 3), lambda: place.driver().end(["b"])):
                with suppress(Killed):
                    call()
                    continue
                call()
            failpoints.observer = None

            def ended(place: Place = place) -> bool:
                place.driver().end(["b"])
                return place.listed() == {("a", "spot"), ("c", "spot")}

            wait_until(ended, f"the end of b, after {killer.struck}")
            assert place.ever() == 3, f"after {killer.struck}"
        struck.append(killer.struck)
    assert {"start machine", "end machine"} <= set(struck)


@pytest.mark.parametrize("kind", ["local", SLOW_COMMAND])
def test_a_process_that_does_not_end_is_ended_by_force(kind: str, tmp_path: Path) -> None:
    with PLACES[kind].opened(tmp_path, STUBBORN) as place:
        driver = place.driver()
        driver.start("spot-1", "spot")

        def ended() -> bool:
            driver.end(["spot-1"])
            return driver.machines() == ()

        wait_until(ended, "its end")
        assert driver.offers() == {}


def test_a_process_that_has_not_said_its_number_is_asked_to_end_as_soon_as_it_has(tmp_path: Path) -> None:
    lock = tmp_path / "spot" / "a" / "lock"

    started: list[Popen[bytes]] = []

    def silent(command: Sequence[str], environ: Mapping[str, str], lock: IO[str], log: IO[bytes]) -> Popen[bytes]:
        started.append(Popen(["/bin/sleep", "1000"], pass_fds=[lock.fileno()], start_new_session=True))
        return started[-1]

    driver = LocalDriver(tmp_path, lambda name, pool: (), grace_s=1000.0, launch=silent)
    driver.start("a", "spot")
    driver.end(["a"])
    lock.write_text(str(started[0].pid))
    driver.end(["a"])
    assert started[0].wait(60) == -signal.SIGTERM


def test_controllers_that_list_at_once_take_each_other_for_no_machine(tmp_path: Path) -> None:
    driver = local(tmp_path, ("/bin/true",))
    driver.start("a", "pool")
    wait_until(lambda: not driver.machines(), "its end")
    with (tmp_path / "pool" / "a" / "lock").open() as another:
        fcntl.flock(another, fcntl.LOCK_SH)
        assert driver.machines() == ()


def test_a_machine_that_dies_is_listed_no_longer(tmp_path: Path) -> None:
    driver = local(tmp_path, ("/bin/true",))
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
