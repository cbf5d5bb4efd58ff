"""The place where machines are rented: the `local` driver, with prices and capacity that change while a run goes on."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from echo_queue.file_lock import is_locked
from echo_queue.fleet.drivers import LocalDriver
from echo_queue.fleet.drivers.local import Command
from echo_queue.fleet.drivers.protocol import Quote
from tests.processes import state_of
from tests.waiting import wait_until

GRACE_S = 5.0
"""From the first end of a machine to its kill."""


class Market(LocalDriver):
    """Machines below `folder`. `usd`: the price of a machine by pool. A pool that is gone says so only at a start."""

    def __init__(self, folder: Path, command: Command, usd: Mapping[str, float]) -> None:
        super().__init__(folder, command, grace_s=GRACE_S)
        self.folder = folder
        self.usd = dict(usd)
        self.gone: frozenset[str] = frozenset()

    def offers(self) -> Mapping[str, Quote]:
        return {pool: Quote(usd) for pool, usd in self.usd.items()}

    def start(self, name: str, pool: str) -> bool:
        return pool not in self.gone and super().start(name, pool)

    def withdraw(self, pool: str) -> None:
        """Takes all machines of a pool away without warning, and has none to give any more."""
        self.gone |= {pool}
        self._signal(f"{pool}/*", signal.SIGKILL)

    def freeze(self, name: str) -> None:
        """Stops a machine's process, which stays there. A signal that comes before it has stopped would end it."""
        for pid in self._signal(f"*/{name}", signal.SIGSTOP):
            wait_until(lambda: state_of(pid) == "T", f"process {pid} to stop")  # noqa: B023

    def close(self) -> None:
        """Kills all machines."""
        self._signal("*/*", signal.SIGKILL)

    def rented(self) -> Iterator[str]:
        """Yields the pool of each machine that lives. Another thread may ask while the controller does."""
        for lock in self.folder.glob("*/*/lock"):
            if is_locked(lock):
                yield lock.parent.parent.name

    def _signal(self, machines: str, number: signal.Signals) -> list[int]:
        """Signals each machine's process group; returns the numbers of the processes."""
        found: list[int] = []
        for lock in self.folder.glob(f"{machines}/lock"):
            if is_locked(lock):
                wait_until(lock.read_text, f"the process number in {lock}")
                with suppress(ProcessLookupError):
                    os.killpg(int(lock.read_text()), number)
                    found.append(int(lock.read_text()))
        return found
