"""Opens a controller for a run and a fleet file: its connection, its driver, and its limits."""

import os
from pathlib import Path

from echo_queue.capacity.fleet_file import ControllerSettings, Fleet
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.fleet.controller import Controller
from echo_queue.fleet.drivers import CommandDriver, Driver, GroupDriver, LocalDriver
from echo_queue.fleet.drivers.command import Commands
from echo_queue.fleet.drivers.groups import kubernetes_api
from echo_queue.fleet.drivers.groups.aws import AutoScalingGroups
from echo_queue.fleet.drivers.groups.kubernetes import Deployments
from echo_queue.launch import roles
from echo_queue.queue import Caller, FleetQueue, Monitor

DEADLINE_S = 20.0
"""The time for which a turn waits for Redis before it leaves the fleet as it is."""


def opened(config: Config, path: Path, fleet: Fleet, *, act: bool, as_json: bool = False) -> Controller:
    """Returns a controller for the run of the configuration at `path`. Raises `ConfigError` for what it lacks."""
    driver = open_driver(config, path, fleet, act=act)
    caller = Caller.connect(config, "controller", DEADLINE_S)
    return Controller(fleet, FleetQueue(caller), Monitor(caller), driver, act=act, as_json=as_json)


def open_driver(config: Config, path: Path, fleet: Fleet, *, act: bool) -> Driver:
    """Returns the driver that the fleet file names. Without `act` it writes nothing."""
    settings = fleet.controller
    match settings.driver:
        case "local":
            program = roles.command("workers", path.resolve())
            grace_s = config.rollout.grace_s + settings.leave_s
            return LocalDriver(config.run.dir / "fleet", lambda name, pool: [*program, "--name", name], grace_s=grace_s)
        case "command":
            _require(settings, "up", "down", "list", fix='give it a list of words, such as ["./up.sh"]')
            commands = Commands(settings.up, settings.down, settings.list, settings.offers)
            return CommandDriver(commands, settings.deadline_s)
        case "kubernetes":
            _require(settings, "release", fix="name the release of the chart, as helm list prints it")
            api = kubernetes_api.opened(settings.api, settings.namespace, settings.deadline_s, os.environ)
            return GroupDriver(Deployments(api, str(settings.release), tuple(fleet.pools)), notes=act)
        case "aws":
            regions = {name: pool.region for name, pool in fleet.pools.items() if pool.cloud == "aws"}
            if elsewhere := fleet.pools.keys() - regions:
                fix = "leave it out: this driver starts nothing elsewhere"
                raise ConfigError(*(Problem(f"pools.{name}.cloud", "is not aws", fix) for name in sorted(elsewhere)))
            return GroupDriver(AutoScalingGroups(config.run.name, regions, settings.deadline_s), notes=act)


def _require(settings: ControllerSettings, *names: str, fix: str) -> None:
    """Raises `ConfigError` for each setting that the driver cannot do without, and that is missing."""
    if missing := [name for name in names if not getattr(settings, name)]:
        what = f"is missing, and the driver is {settings.driver}"
        raise ConfigError(*(Problem(f"controller.{name}", what, fix) for name in missing))
