"""The evidence of a run that is over, and the report of a broken promise.

`Evidence` holds what the roles attempted and were told (`history`), what the learner recorded, what survives in the
store and in the queue; its methods answer what the checks ask of it. A `Violation` names ids and their history.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from echo_queue.evaluation.results import EvaluationResult
from echo_queue.queue import Audit, ComponentStatus, staleness_rules
from echo_queue.records import Version
from tests.faults.history.facts import Generated
from tests.faults.history.machines import Machines
from tests.faults.history.recorder import Event
from tests.faults.history.served_versions import Served

SHOWN_IDS, SHOWN_LINES = 10, 40
HELD_OUT = "held_out"


@dataclass(frozen=True)
class Update:
    """The learner's own record of one update: `version` is the one it made."""

    lineage: int
    version: int
    ids: tuple[str, ...]
    lags: Mapping[int, int]
    time_s: float
    reused_lags: Collection[int] = ()
    """The lags of groups that it trained a second time."""


@dataclass(frozen=True)
class Link:
    """A checkpoint of the surviving chain, or of what it left behind: the ids trained since its parent."""

    name: str
    lineage: int
    version: int
    parent: str | None
    trained: tuple[str, ...]


@dataclass(frozen=True)
class Snapshot:
    """`components`: those of a mixture; `undone`: groups of checkpoints that were left behind by then."""

    time_s: float
    audit: Audit
    components: tuple[ComponentStatus, ...] = ()
    undone: int = 0


class KeptRow(NamedTuple):
    """A prompt of a round in the store: print (`facts.said_by`) and rewards of its answers, or why it failed."""

    index: int
    said: str
    rewards: tuple[float, ...]
    reason: str


@dataclass(frozen=True)
class Kept:
    """What the store has of one set of one round."""

    result: EvaluationResult
    rows: tuple[KeptRow, ...]


@dataclass(frozen=True)
class Evidence:
    """`chain`: surviving checkpoints, oldest first. `stored`: names of all manifests found in the store.

    `final`, `dead` (id → reason) and `counts` (by cause) are what the queue says once nothing moves any more.
    `poison`: prompts that no environment can score. Tokens from `vocabulary` on are spoiled. `stamped`: the tensors
    tell their version (`stamps`), and a group says which made it. `served`: what the workers loaded, if that was seen.
    `machines`: what those of a fleet said of themselves, if there is one. `told`, `kept`: what the queue tells of
    rounds of evaluation, and what the store has of them. `components`: those of the run's mixture in the end. `batch`:
    groups of an update.
    """

    events: tuple[Event, ...]
    updates: tuple[Update, ...]
    chain: tuple[Link, ...]
    stored: frozenset[str]
    snapshots: tuple[Snapshot, ...]
    final: Audit
    dead: Mapping[str, str]
    counts: Mapping[str, int]
    s: int
    max_attempts: int
    vocabulary: int
    poison: Callable[[str], bool]
    stamped: bool
    served: Served | None
    machines: Machines | None = None
    told: tuple[EvaluationResult, ...] = ()
    kept: tuple[Kept, ...] = ()
    components: tuple[ComponentStatus, ...] = ()
    batch: int = 1

    @cached_property
    def leased(self) -> frozenset[str]:
        """Every id that a worker was told to have leased."""
        return frozenset(task for event in self.answers("lease") for task in event.facts.ids)

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """Ids in the surviving lineage, as often as they are there."""
        return tuple(task for link in self.chain for task in link.trained)

    @cached_property
    def completed(self) -> dict[str, Generated]:
        """Every group that anybody tried to complete, by its mark, as its maker made it."""
        return {made.mark: made for event in self.attempts("complete") for made in event.facts.groups}

    @cached_property
    def spoiled(self) -> frozenset[str]:
        """Ids of which somebody made a group with tokens that the model does not have."""
        return frozenset(made.id for made in self.completed.values() if made.highest >= self.vocabulary)

    @cached_property
    def held_out(self) -> frozenset[str]:
        """The sets that were declared as held out."""
        return frozenset(event.facts.set for event in self.attempts("declare") if event.facts.order == HELD_OUT)

    def is_held_out(self, task: str) -> bool:
        return task.partition("/")[0] in self.held_out

    @cached_property
    def epochs(self) -> dict[str, int]:
        """The epochs of each set that was declared."""
        return {event.facts.set: event.facts.epochs for event in self.attempts("declare")}

    @cached_property
    def forks(self) -> dict[int, Version]:
        """Each lineage that a learner is known to have begun, and the version with which it began."""
        return {
            event.facts.lineage or 0: Version(event.facts.parent or 0, event.facts.version or 0)
            for event in self.answers("resume")
        }

    @property
    def surviving_updates(self) -> list[Update]:
        """Returns the updates between two checkpoints of the chain."""
        held, before = set(), 0
        for link in self.chain:
            held |= {(link.lineage, version) for version in range(before + 1, link.version + 1)}
            before = link.version
        return [update for update in self.updates if (update.lineage, update.version) in held]

    def abandoned(self, version: Version, lineage: int) -> bool:
        """Returns whether the weights of that lineage do not descend from `version`."""
        return staleness_rules.abandoned(
            version, {line: began for line, began in self.forks.items() if line <= lineage}
        )

    def attempts(self, *steps: str) -> Iterator[Event]:
        return (event for event in self.events if event.step in steps and not event.answered)

    def answers(self, *steps: str) -> Iterator[Event]:
        return (event for event in self.events if event.step in steps and event.answered)

    def acknowledged(self, *steps: str) -> dict[tuple[str, int], tuple[Event, Event]]:
        """(life, number) → answer and attempt."""
        attempts = {(event.life, event.number): event for event in self.attempts(*steps)}
        return {
            (event.life, event.number): (event, attempts[event.life, event.number]) for event in self.answers(*steps)
        }

    def violation(self, kind: str, what: str, ids: Iterable[str]) -> "Violation":
        """Returns a violation with the history of the first of these ids."""
        named = tuple(ids)
        return Violation(kind, what, named, self.lines(named[:2]))

    def lines(self, ids: Collection[str]) -> tuple[str, ...]:
        """The history of these ids, a line each, as far as fits on a screen."""
        concerned = set(ids)
        found = [told for event in self.events if (told := _told(event, concerned))]
        cut = [f"… {len(found) - SHOWN_LINES} further lines"] if len(found) > SHOWN_LINES else []
        return (*found[:SHOWN_LINES], *cut)


@dataclass(frozen=True)
class Violation:
    """A broken promise: its kind, what is wrong, the ids concerned, and what history says about the first of them."""

    kind: str
    what: str
    ids: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" … {len(self.ids) - SHOWN_IDS} more" if len(self.ids) > SHOWN_IDS else ""
        named = [f"    {' '.join(self.ids[:SHOWN_IDS])}{more}"] if self.ids else []
        return "\n".join([f"  {self.kind}: {self.what}", *named, *(f"      {line}" for line in self.lines)])


def _told(event: Event, ids: set[str]) -> str:
    """The line of an event, if it concerns one of these ids."""
    groups = [made for made in event.facts.groups if made.id in ids]
    named = [task for task in event.facts.ids if task in ids]
    if event.step in ("declare", "submit"):
        named += [task for task in sorted(ids) if _concerns(event, task)]
    partials = [partial_sample for partial_sample in event.facts.partials if partial_sample.id in ids]
    if not groups and not named and not partials:
        return ""
    sign = "←" if event.answered else "→"
    words = " ".join([*map(str, groups), *map(str, partials), *named, *event.facts.outcomes[:3]])
    return f"{event.time_s:.3f} {event.place} #{event.number} {sign} {event.step} {words}"


def _concerns(event: Event, task: str) -> bool:
    name, _, index = task.rsplit("/", 2)
    inside = (part.first <= int(index) < part.first + part.size for part in event.facts.parts)
    return event.facts.set == name and any(inside)
