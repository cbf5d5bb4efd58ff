"""Places that keep groups of like machines, and the one driver for all of them."""

from echo_queue.fleet.drivers.groups.driver import GroupDriver
from echo_queue.fleet.drivers.groups.group import MachineGroup, MachineGroups, Member

__all__ = ["GroupDriver", "MachineGroup", "MachineGroups", "Member"]
