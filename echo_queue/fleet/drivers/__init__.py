"""The drivers of a fleet: each starts, lists and ends machines in one kind of place.

A new one is a class that fits `Driver` and a line in `echo_queue.fleet.opening`; `tests/fleet/test_drivers.py` tells
whether it fits.
"""

from echo_queue.fleet.drivers.command import CommandDriver
from echo_queue.fleet.drivers.groups import GroupDriver
from echo_queue.fleet.drivers.local import LocalDriver
from echo_queue.fleet.drivers.protocol import Driver, DriverError, Quote

__all__ = ["CommandDriver", "Driver", "DriverError", "GroupDriver", "LocalDriver", "Quote"]
