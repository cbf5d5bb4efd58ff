"""Processes of this machine as a place with machines: by the driver of its own, and by a user's script."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from echo_queue.fleet.drivers import CommandDriver, Driver, LocalDriver
from echo_queue.fleet.drivers.command import Commands
from tests.fleet.places.place import ENDLESS, Place
from tests.waiting import wait_until

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


def local(folder: Path, command: Sequence[str] = ENDLESS) -> LocalDriver:
    return LocalDriver(folder, lambda name, pool: command, grace_s=0.0)


class Processes(Place):
    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self._folder = folder
        self._command = command

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, command: Sequence[str] = ENDLESS) -> Iterator[Self]:
        folder.mkdir(exist_ok=True)
        place = cls(folder / "machines", command)
        yield place

        def all_gone() -> bool:
            killer = local(place._folder)
            killer.end([one.name for one in killer.machines()])
            return not killer.machines()

        wait_until(all_gone, "the end of all machines")

    def driver(self) -> Driver:
        return local(self._folder, self._command)

    def ever(self) -> int:
        return len(list(self._folder.glob("*/*/lock")))

    def running(self) -> int:
        return len(local(self._folder).machines())


class Scripts(Processes):
    def driver(self) -> Driver:
        script = self._folder.parent / "machines.py"
        script.write_text(SCRIPT.format(command=list(self._command)))
        words = (sys.executable, str(script), str(self._folder))
        return CommandDriver(Commands((*words, "up"), (*words, "down"), (*words, "list")), 60.0)
