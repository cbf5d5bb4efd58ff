"""The view that the tests of drivers have of a place with machines: a driver for it, and the truth about it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from echo_queue.fleet.drivers import Driver
from tests.waiting import wait_until

POOLS = ("spot", "rest")
ENDLESS = ("/bin/sh", "-c", "exec sleep 1000")


class Place(ABC):
    """A place with the pools `POOLS`, which has no machine at the beginning."""

    @classmethod
    @abstractmethod
    def opened(cls, folder: Path, command: Sequence[str] = ENDLESS) -> AbstractContextManager[Self]:
        """Opens one. Where machines are processes they run the command."""

    @abstractmethod
    def driver(self) -> Driver:
        """Returns a driver as another controller would have it."""

    @abstractmethod
    def ever(self) -> int:
        """Returns how many machines there have ever been."""

    @abstractmethod
    def running(self) -> int:
        """Returns how many are up and not about to end."""

    def listed(self) -> set[tuple[str, str]]:
        """Returns name and pool of each machine that a driver lists."""
        return {(one.name, one.pool) for one in self.driver().machines()}

    def until_up(self, count: int) -> None:
        """Waits until so many machines are up. Lists them meanwhile, as a controller does."""

        def up() -> bool:
            self.listed()
            return self.running() == count

        wait_until(up, f"{count} machines")
