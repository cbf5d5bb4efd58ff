"""The documents that commands print with `--json`: one class each, from which their JSON Schema is made as well.

`echo-queue schema` prints the schemas, and docs/schema.json holds them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, PlainSerializer, WithJsonSchema, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import DataclassSchema, WithDefaultSchema

from echo_queue import __version__
from echo_queue.capacity.estimate import RunEstimate
from echo_queue.cli.transcript import Transcript
from echo_queue.errors import Problem
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.fleet.invitation.register import State
from echo_queue.queue import Audit, FailedSet, FleetStatus, Status
from echo_queue.queue.dead_causes import DeadCause
from echo_queue.queue.pool_status import PoolStatus
from echo_queue.records import Version
from echo_queue.reporting.metrics import Summary, UpdateMetrics
from echo_queue.weights.manifest import Part, TensorInfo

TIME = {"type": "string", "format": "date-time"}
Phase = Literal["waiting", "running", "stopped", "finished", "ended"]
Moment = Annotated[datetime, PlainSerializer(datetime.isoformat), WithJsonSchema(TIME)]


@dataclass(frozen=True)
class StatusDocument:
    """`status`. `phase`: "waiting" until the first learner has begun; "stopped" while no learner or worker lives;
    "finished" once all is trained; "ended" for the last word of a run that ended before that.

    `training`: figures of the whole run, `recent`: of the last 20 updates, `update`: of the last one; null before the
    first one.
    `skew`: which roles run another release than `release`, that of this command; empty if none is known to. `held_up`:
    what keeps the run from moving. `dead`: the reasons of which prompts died, the commonest first. `pools`: the living
    workers summed up. `evaluations`: the newest result of each evaluation.
    """

    run: str
    phase: Phase
    release: str
    skew: str
    queue: Status
    training: Summary | None
    recent: Summary | None
    update: UpdateMetrics | None
    held_up: tuple[str, ...]
    dead: tuple[DeadCause, ...]
    pools: tuple[PoolStatus, ...]
    failed_sets: tuple[FailedSet, ...]
    evaluations: tuple[EvaluationResult, ...]


@dataclass(frozen=True)
class GroupDocument:
    """`show`: a group's samples. `prompt` is null where it is not stored."""

    task: str
    where: str
    prompt: str | None
    samples: tuple[Transcript, ...]


@dataclass(frozen=True)
class CheckDocument:
    """`config check`. `config`: the values of all keys; null if the file cannot be read."""

    ok: bool
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    config: Mapping[str, Any] | None
    release: str = __version__


@dataclass(frozen=True)
class RouteEntry:
    """A route to a version: its bytes in the store, and whether it was published with the manifest."""

    bytes: int
    main: bool


@dataclass(frozen=True)
class VersionEntry:
    """A version in the store, with its routes by name."""

    version: Version
    published: bool
    latest: bool
    routes: Mapping[str, RouteEntry]


@dataclass(frozen=True)
class BaseDocument:
    """The version that a route begins at, and the root digest of its tensors."""

    lineage: int
    number: int
    root: str


@dataclass(frozen=True)
class RouteDocument:
    """The parts of a route; `base` is null for one that begins at nothing."""

    base: BaseDocument | None
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class ManifestDocument:
    """`weights show`: a version's manifest."""

    version: Version
    format: int
    kind: str
    run: str
    lineage: int
    number: int
    tensors: tuple[TensorInfo, ...]
    aliases: Mapping[str, str]
    root: str
    route: RouteDocument
    piece_bytes: int


@dataclass(frozen=True)
class InvitationEntry:
    """`invitations`: an invitation, and since when it has been in its state. `host`: of the machine that claimed it.

    One that is unreadable has no times; `echo-queue revoke` removes it.
    """

    id: str
    name: str
    state: State
    since: Moment | None
    expires: Moment | None
    host: str | None


def documents() -> Mapping[str, Any]:
    """Returns the type of each command's document."""
    from echo_queue.capacity.plan.document import Plan  # here and below, because a status needs neither
    from echo_queue.cli.plan.simulate import SimulationDocument
    from echo_queue.evaluation.comparison import EvaluationDocument

    return {
        "status": StatusDocument,
        "audit": Audit,
        "show": GroupDocument,
        "eval": EvaluationDocument,
        "config check": CheckDocument,
        "estimate": RunEstimate,
        "plan": Plan,
        "simulate": SimulationDocument,
        "fleet": FleetStatus,
        "invitations": list[InvitationEntry],
        "weights ls": list[VersionEntry],
        "weights show": ManifestDocument,
    }


class _Schema(GenerateJsonSchema):
    """A schema of what is printed, in which no key is missing. Descriptions are in one line; titles only tell keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def dataclass_schema(self, schema: DataclassSchema) -> JsonSchemaValue:
        found = super().dataclass_schema(schema)
        for described in (found, *found["properties"].values()):
            if "description" in described:
                described["description"] = " ".join(described["description"].split())
        return found


def schemas() -> dict[str, Any]:
    """Returns one JSON Schema: `properties` has that of each command's document, by the command's name."""
    config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    found = create_model("Documents", __config__=config, **documents())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found.model_json_schema(mode="serialization", schema_generator=_Schema),
        "title": "The documents that echo-queue prints with --json, by command",
    }
