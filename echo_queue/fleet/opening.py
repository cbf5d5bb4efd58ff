"""Opens a controller for a run and a fleet file: its connection, its driver, and its limits."""

from pathlib import Path

from echo_queue.capacity.fleet import Controller as Settings
from echo_queue.capacity.fleet import Fleet
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.fleet.controller import Controller
from echo_queue.fleet.drivers import CommandDriver, Driver, LocalDriver
from echo_queue.fleet.drivers.command import Commands
from echo_queue.launch import roles
from echo_queue.queue import Caller, FleetQueue, Monitor

DEADLINE_S = 20.0
"""The time for which a turn waits for Redis before it leaves the fleet as it is."""


def opened(config: Config, path: Path, fleet: Fleet, *, act: bool) -> Controller:
    """Returns a controller for the run of the configuration at `path`. Raises `ConfigError` for what it lacks."""
    driver = open_driver(config, path, fleet.controller)
    caller = Caller.connect(config, "controller", DEADLINE_S)
    return Controller(fleet, FleetQueue(caller), Monitor(caller), driver, act=act)


def open_driver(config: Config, path: Path, settings: Settings) -> Driver:
    """Returns the driver that the fleet file names."""
    if settings.driver == "local":
        program = roles.command("workers", path.resolve())
        grace_s = config.rollout.grace_s + settings.leave_s
        return LocalDriver(config.run.dir / "fleet", lambda name, pool: [*program, "--name", name], grace_s=grace_s)
    missing = [name for name in ("up", "down", "list") if not getattr(settings, name)]
    if missing:
        fix = 'give each a list of words, such as ["./up.sh"]'
        problems = [Problem(f"controller.{name}", "is missing, and the driver is command", fix) for name in missing]
        raise ConfigError(*problems)
    commands = Commands(settings.up, settings.down, settings.list, settings.offers)
    return CommandDriver(commands, settings.deadline_s)
