"""The setting of a simulation: a learner, a bound S, and pools of machines, as a TOML file states them.

Sections and keys that a run has as well have the same names as in its configuration. What is wrong in a file is
reported all at once, before anything is simulated.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from echo_queue.config.loading import read_toml
from echo_queue.config.model import Positive, Section, Staleness
from echo_queue.errors import ConfigError, Problem
from echo_queue.queue import RunRules
from echo_queue.queue.staleness_rules import kappa_needed

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SomeSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]

EXAMPLE = "configs/simulations/spot.toml"


class Simulation(Section):
    """The length of the simulation."""

    updates: Positive = 400
    """Number of updates that are counted."""
    warm_up: Annotated[int, Field(ge=0)] = 40
    """Number of updates before these."""


class Learner(Section):
    """The learner."""

    batch_groups: Positive
    """B, the number of groups per update."""
    t_train_s: Seconds
    """Seconds of an update."""
    publish_s: SomeSeconds = 0.0
    """Seconds from the end of an update until its weights are published."""
    usd_per_hour: Rate = 0.0


class Generation(Section):
    """The generation time of a group, on a machine of speed 1 that holds as many groups as it may."""

    mean_s: Seconds = 1.0
    """The mean, unless the times are measured."""
    tail: Literal["constant", "log-normal", "pareto", "empirical"] = "log-normal"
    sigma: Rate = 0.6
    """Standard deviation of the logarithm, of a log-normal tail."""
    alpha: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.5
    """Exponent of a Pareto tail."""
    longest_s: Annotated[float, Field(gt=0)] = math.inf
    """The longest generation time, since the number of tokens is limited."""
    file: Path | None = None
    """File with a measured generation time in each line, in seconds, for an empirical tail."""

    @model_validator(mode="after")
    def _has_its_keys(self) -> Self:
        if (self.tail == "empirical") != (self.file is not None):
            raise ValueError("an empirical tail has a file, and no other tail has one")
        return self


class Queue(Section):
    """Leases and attempts."""

    lease_s: Seconds = 30.0
    max_attempts: Positive = 4


class Pool(Section):
    """Machines of one kind. Each holds one rollout worker."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    machines: Positive
    concurrent_groups: Positive = 8
    """Number of groups that a machine generates at once."""
    speed: Seconds = 1.0
    """Speed of a machine: generation times are divided by it."""
    fetch_s: SomeSeconds = 0.0
    """Seconds from the publication of weights until the machines serve them."""
    boot_s: SomeSeconds = 0.0
    """Seconds from the loss of a machine until another one serves in its place."""
    begins_s: SomeSeconds = 0.0
    """When the machines come."""
    ends_s: Seconds | None = None
    """When they go, after they have handed over their groups."""
    usd_per_hour: Rate = 0.0
    """Price of a machine."""
    stragglers: Share = 0.0
    """Share of the machines that are slow."""
    straggler_speed: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Speed of a slow machine, as a share of the others'."""
    progress_s: SomeSeconds = 2.0
    """Seconds between two times that a machine stores its partial rollouts. 0: never."""
    notice: bool = False
    """Whether a machine is told before it is lost, and has time to hand its groups over."""
    losses_per_machine_hour: Rate = 0.0
    """Machines that are lost one by one, for each hour of a machine."""
    bursts_per_hour: Rate = 0.0
    """Times in an hour at which several machines are lost within minutes."""
    burst_share: Share = 0.25
    burst_within_s: Seconds = 300.0
    losses_file: Path | None = None
    """File with a loss in each line: seconds since the beginning, and the number of machines."""


class Setting(Section):
    """The whole file."""

    simulation: Simulation = Simulation()
    learner: Learner
    staleness: Staleness = Staleness()
    generation: Generation
    queue: Queue = Queue()
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len(names) > len(set(names)):
            raise ValueError("two pools have the same name")
        s, kappa = self.staleness.s, self.staleness.kappa
        if kappa != "auto" and kappa > s + 1:
            raise ValueError(f"staleness.kappa is {kappa}; it may be at most S + 1 = {s + 1}")
        if all(pool.begins_s > 0 for pool in self.pools) or all(pool.ends_s is not None for pool in self.pools):
            raise ValueError("at times there is no pool at all: give one pool neither begins_s nor ends_s")
        return self

    def with_s(self, s: int) -> Self:
        """Returns the same setting with another bound, and with a κ that this bound allows."""
        kappa = self.staleness.kappa
        allowed = kappa if kappa == "auto" else min(kappa, s + 1)
        return self.model_copy(update={"staleness": self.staleness.model_copy(update={"s": s, "kappa": allowed})})

    @property
    def t_bcast_s(self) -> float:
        """Seconds from the end of an update until the machines of the slowest pool serve its weights."""
        return self.learner.publish_s + max(pool.fetch_s for pool in self.pools)

    @property
    def kappa(self) -> int:
        """The number of updates per publication."""
        if self.staleness.kappa == "auto":
            return min(kappa_needed(self.t_bcast_s, self.learner.t_train_s), self.staleness.s + 1)
        return self.staleness.kappa

    @property
    def rules(self) -> RunRules:
        """The rules of the queue. Nothing is known of the lengths of prompts, so their order is their own."""
        return replace(RunRules.of(self), kappa=self.kappa, longest_first=False)


def load(path: Path) -> Setting:
    """Reads a setting. Raises `ConfigError` with all that is wrong in it."""
    values = read_toml(path)
    if "run" in values and "generation" not in values:
        what = "is a run's configuration, not a setting, which says how fast learner and machines are"
        raise ConfigError(Problem(str(path), what, f"copy {EXAMPLE} and write your own figures (docs/simulation.md)"))
    try:
        return Setting.model_validate(values)
    except ValidationError as error:
        raise ConfigError(*_problems(error, path)) from None


def _problems(error: ValidationError, path: Path) -> Iterator[Problem]:
    for entry in error.errors():
        where = ".".join(str(part) for part in entry["loc"]) or str(path)
        match entry["type"]:
            case "extra_forbidden":
                yield Problem(where, "unknown key", "remove it; docs/simulation.md lists the keys")
            case "missing":
                yield Problem(where, "is missing", "add it")
            case "value_error":
                yield Problem(where, entry["msg"].removeprefix("Value error, "), "change one of them")
            case _:
                yield Problem(where, f"{entry['input']!r} is not valid: {entry['msg'].lower()}", "fix the value")


def read_generation_times(setting: Generation) -> tuple[float, ...]:
    """Returns the measured generation times, in seconds; () if the tail is not empirical. Raises `ConfigError`."""
    if setting.file is None:
        return ()
    times = tuple(words[0] for words in _lines(setting.file, "generation.file", "one number, above 0", 1))
    if not times or min(times) <= 0:
        what = f"{setting.file} has no time, or one that is not above 0"
        raise ConfigError(Problem("generation.file", what, "fix that line"))
    return times


def read_losses(pool: Pool) -> tuple[tuple[float, int], ...]:
    """Returns seconds and machines of each loss in the pool's file, in order of time. Raises `ConfigError`."""
    if pool.losses_file is None:
        return ()
    lines = _lines(pool.losses_file, f"pool {pool.name}, losses_file", "seconds and a number of machines", 2)
    if any(at_s < 0 or machines < 1 or machines % 1 for at_s, machines in lines):
        what = f"{pool.losses_file} has a time below 0, or a number of machines that is not whole"
        raise ConfigError(Problem(f"pool {pool.name}, losses_file", what, "fix that line"))
    return tuple(sorted((at_s, int(machines)) for at_s, machines in lines))


def _lines(path: Path, where: str, form: str, words: int) -> list[tuple[float, ...]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem(where, f"{path} cannot be read: {error}", "name a text file")) from None
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            row = tuple(map(float, line.replace(",", " ").split()))
        except ValueError:
            row = ()
        if len(row) != words or not all(map(math.isfinite, row)):
            raise ConfigError(Problem(f"{path}:{number}", f"{line!r} is not {form}", "fix that line"))
        rows.append(row)
    return rows
