"""The fleet file: a learner, what it trains, and the pools of machines that could generate for it.

`echo_queue.capacity.loading` reads it. Sizes and rates are those of one machine or one GPU, as each key says. Weights
are bfloat16.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from echo_queue.capacity.inputs import NotNegative, Positive, Price, Share, Table, Text, TrafficPrice
from echo_queue.config.model import Queue, Staleness

Count = Annotated[int, Field(ge=1)]
Form = Literal["snapshot", "delta"]
PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,18}[a-z0-9]$")]
"""Names go into those of machines and workers: infra/terraform/modules/fleet_plan/pools.schema.json."""
CLOUDS = ("aws", "gcp")
"""The clouds whose pools Terraform makes. Pools elsewhere are planned alike, and started otherwise."""


class Run(Table):
    """The groups that the learner trains, and the bound."""

    s: Annotated[int, Field(ge=0, le=64)]
    """S, the staleness bound."""
    compare_s: tuple[Annotated[int, Field(ge=0, le=64)], ...] = ()
    """Other bounds to compare with. Left out: the neighbours of `s`."""
    kappa: Count | Literal["any"] = 1
    """κ, updates per publication; `any` lets the plan choose."""
    groups_per_update: Count
    group_size: Count
    updates: Count | None = None
    """Updates of the whole run, if its price is asked."""
    utilisation: Annotated[float, Field(gt=0, lt=1)] = 0.97
    """Share of its time for which the learner is to train."""
    accepted: Share
    """Share of the generated groups that are fit to train: neither invalid nor filtered out."""
    progress_s: Annotated[float, Field(gt=0)] | None = 2.0
    """`rollout.progress_s`. Without it there are no partial rollouts, and an interrupted group starts from scratch."""


class SampleLengths(Table):
    """Lengths of samples, in tokens."""

    mean_tokens: Positive
    spread: NotNegative
    """σ of the logarithm of the lengths."""
    most_tokens: Count
    """`model.max_new_tokens`, at which samples are cut."""


class Learner(Table):
    """The learner's machine or machines."""

    gpus: Count
    price: Price
    """The price of all machines of the learner together."""
    t_train_s: Positive
    """Seconds of an update."""
    link_gbit: Positive
    """The learner's link to the store."""


class Weights(Table):
    """The weights that are published, and the way in which they spread."""

    parameters: Count
    """Parameters that are published: the model's, or the adapters'."""
    change: Share
    """Share of the values that change between two publications."""
    form: Form = "delta"
    peers: bool = True
    """`weights.transport = "peers"`: a worker fetches from the one before it in its region's chain."""
    chunk_bytes: Count = 262_144
    store_gbit: Positive | None = None
    """What the store gives to all readers together. Left out: each reader gets what its own link takes, as of S3."""


class Prices(Table):
    """What is done about old and unknown prices."""

    oldest_days: Annotated[int, Field(ge=0)] = 14
    old: Literal["refuse", "mark"] = "refuse"
    """`mark` plans with old prices, marks them, and leaves pools without a price out."""


class Budget(Table):
    """Limits on money."""

    usd_per_hour: Annotated[float, Field(gt=0)] | None = None
    """The most that the learner and all pools may cost together."""


class Engine(Table):
    """What generates: GPUs of one kind with one engine."""

    tokens_per_s: Annotated[Mapping[Annotated[int, Field(gt=0)], Positive], Field(min_length=1)]
    """Mean length of samples → tokens per second of one GPU, with `samples_at_once`."""
    samples_at_once: Count
    """Samples in flight on one GPU, at which `tokens_per_s` was found."""


class Centralised(Engine):
    """Generation at the learner's place, on GPUs of its own kind, for comparison."""

    price: Price
    """The price of one such GPU for an hour."""
    link_gbit: Positive


class Pool(Engine):
    """Like machines in one region. Each GPU has a worker."""

    gpu: Text
    cloud: Text
    region: Text
    instance_types: tuple[str, ...] = ()
    gpus: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs of a machine."""
    max_machines: Annotated[int, Field(ge=1, le=500)]
    price: Price | None = None
    """The price of one machine. Left out: unknown."""
    interruptions_per_hour: NotNegative
    """Interruptions of one machine in an hour."""
    boot_s: NotNegative
    """From the order until the machine generates."""
    link_gbit: Positive
    """Rate of a machine's link."""
    reading: TrafficPrice | None = None
    """What a byte costs that comes from the store. Left out: nothing, as within a region."""


Command = tuple[Text, ...]


class ControllerSettings(Table):
    """The limits and the driver of `echo-queue fleet`. The plan does not read them (docs/fleet.md)."""

    driver: Literal["local", "command", "kubernetes", "aws"] = "local"
    """`local`: worker processes of this machine. `command`: the commands below. `kubernetes`: the chart's pools. `aws`:
    Terraform's pools."""
    release: Text | None = None
    """`kubernetes`: the release of the chart."""
    namespace: str = ""
    """`kubernetes`: its namespace. Left out: that of the controller's pod."""
    api: Annotated[str, Field(pattern=r"^(https?://.+)?$")] = ""
    """`kubernetes`: address of the API server, such as that of `kubectl proxy`. Left out: that of the pod's cluster."""
    up: Command = ()
    """Command that starts a machine; it gets the machine's name and its pool."""
    down: Command = ()
    """Command that ends machines; it gets their names."""
    list: Command = ()
    """Command that prints the machines that exist."""
    offers: Command = ()
    """Command that prints prices and what can be had now. Left out: what the pools say."""
    deadline_s: Annotated[float, Field(gt=0)] = 60.0
    """Time for each command, and for each request to an API."""
    usd: Annotated[float, Field(gt=0)] | None = None
    """The most that the pools may cost in all."""
    machines: Count = 1000
    """The most machines of all pools together, those that are leaving included."""
    every_s: Annotated[float, Field(gt=0)] = 10.0
    """Time between two decisions."""
    calm_s: Annotated[float, Field(ge=0)] = 600.0
    """Seconds for which a cheaper fleet must have been possible before machines are dismissed for it."""
    saving: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """The least share of the cost that is worth it."""
    measure_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds for which the same machines must have served before their measured rates count."""
    silent_s: Annotated[float, Field(gt=0)] = 90.0
    """A machine whose workers are silent for longer is replaced, and goes on."""
    lost_s: Annotated[float, Field(gt=0)] = 900.0
    """A machine whose workers are silent for longer is ended."""
    rest_s: Annotated[float, Field(ge=0)] = 60.0
    """Time in which a dismissed machine may finish its groups."""
    leave_s: Annotated[float, Field(gt=0)] = 60.0
    """Time in which it must then leave; after it the machine is ended."""
    stall_s: Annotated[float, Field(gt=0)] = 900.0
    """A learner that is not heard for longer needs no machine, and all are dismissed. One that is heard and makes no
    progress is given four times as long, and three updates at least."""
    redis_away_s: Annotated[float, Field(gt=0)] = 3600.0
    """Where Redis has not answered for longer, the controller that led last ends the machines that it knows of."""


class Churn(Table):
    """How machines of a pool come, go and differ in a simulation, beside interruptions that come one by one."""

    notice: bool = False
    """A machine is told before it is lost, and has time to hand its groups over."""
    bursts_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Times in an hour at which several machines are lost within minutes."""
    burst_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the machines that a burst takes."""
    burst_within_s: Annotated[float, Field(gt=0)] = 300.0
    losses_file: Path | None = None
    """File with a loss in each line: seconds since the beginning, and the number of machines."""
    stragglers: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the machines that are slow."""
    straggler_speed: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Speed of a slow machine, as a share of the others'."""
    begins_s: Annotated[float, Field(ge=0)] = 0.0
    """When the machines come."""
    ends_s: Annotated[float, Field(gt=0)] | None = None
    """When they go, after they have handed over their groups."""


class Simulation(Table):
    """What a simulation alone reads (docs/simulation.md)."""

    updates: Count = 400
    """Updates that are counted."""
    warm_up: Annotated[int, Field(ge=0)] = 40
    """Updates before these."""
    machines: Mapping[PoolName, Count] = Field(default_factory=dict)
    """Machines by pool. Left out: those that a plan rents."""
    churn: Mapping[PoolName, Churn] = Field(default_factory=dict)
    lengths_file: Path | None = None
    """File with a group's longest sample in each line, in tokens, from which groups are drawn. Left out: `lengths`."""
    staleness: Staleness = Staleness()
    """`pace`, `late` and `late_deadline_s`, as in the configuration of a run."""
    queue: Queue = Queue()
    """`lease_s` and `max_attempts`, likewise."""


class Fleet(Table):
    """The whole file."""

    format: Literal[1]
    name: Text
    run: Run
    lengths: SampleLengths
    learner: Learner
    weights: Weights
    pools: Annotated[Mapping[PoolName, Pool], Field(min_length=1)]
    prices: Prices = Prices()
    budget: Budget = Budget()
    centralised: Centralised | None = None
    controller: ControllerSettings = ControllerSettings()
    simulation: Simulation = Simulation()
