"""The calls that a controller makes to a place that has machines."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from echo_queue.errors import EchoQueueError
from echo_queue.fleet.state import Machine


class Quote(NamedTuple):
    """The price and the machines that a pool offers now. None: the driver does not know, and the fleet file says it.

    `available`: how many further machines may be had. `said`: in words, where the price comes from, or why there is
    none; empty if there is nothing to say.
    """

    usd_per_hour: float | None = None
    available: int | None = None
    said: str = ""


class DriverError(EchoQueueError):
    """The place does not answer, is throttling, or answers what nobody understands. Nothing is known of the call."""


class Driver(Protocol):
    """Machines with names that the controller gives them. Any call may be made again; each raises `DriverError`.

    - A name is used once. `start` with the name of a machine that exists, or has ended, starts nothing.
    - `end` of a machine that does not exist, or is about to end, does nothing.
    - A machine is listed from the return of `start` until it is paid for no longer.
    """

    def machines(self) -> tuple[Machine, ...]:
        """Returns the machines that exist, whoever started them."""

    def start(self, name: str, pool: str) -> bool:
        """Orders a machine, whose worker gets its name. Returns False if the pool has none to give now."""

    def end(self, names: Sequence[str]) -> None:
        """Ends machines, and does not wait for their ends."""

    def offers(self) -> Mapping[str, Quote]:
        """Returns what pools offer now. A pool that is left out offers what the fleet file says."""
