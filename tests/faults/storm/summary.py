"""The summary of a storm: what it did, how it ended, and whether it was enough to show anything.

A long storm shows that the project withstands one, so it must have been one. A short one, as in CI on a machine that
may be busy, is judged by the promises alone; the report lists what else it lacks beside the verdict.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from echo_queue.config import Config
from tests.faults.history.checker import Verdict
from tests.faults.storm.settings import KILLS

DRAIN_S = 60.0
CELERY = "celery: "
"""How the lines of Celery's log begin. What its own code raises is no fault of a role; a short storm only lists it."""
FORESEEN = (
    r"celery: billiard\.exceptions\.WorkerLostError: ",
    r"celery: billiard\.einfo\.ExceptionWithTraceback: ",
    r"celery: redis\.exceptions\.NoScriptError: No matching script",
    r"celery: redis\.exceptions\.ConnectionError: Error (111 connecting to|while reading from) ",
    r"celery: echo_queue\.errors\.ServiceError: .*: no answer (for|within) ",
)
"""Lines that Celery logs: its pool, when one of its processes is killed; its consumer, which then ends, when Redis dies
after it has learnt a lock's script and before that is called, or again while it closes what it had open there; a task,
when a service was away beyond its deadline (its message comes again)."""
LONG_S, KILLS_PER_S, FEWEST_KILLS_PER_S = 300.0, 1_000 / 600, 0.5
"""A storm of this length kills so often; a short one, on a machine that may be busy, at least so often."""
MANY_REWINDS, MANY_NOTICES = 8, 60
"""Tries of which many come to nothing: the learner is started again in the midst, the worker holds nothing then."""
STRETCH_S = 60.0
"""Every stretch of this length has a snapshot."""


@dataclass(frozen=True)
class StormSummary:
    """The acts of a storm, and its end."""

    seed: int
    rules: str
    """The run's rules that decide most, as a phrase."""
    seconds: float
    kills: Counter[str]
    learners: Counter[str]
    """The signals that the learner's processes got, by signal and process: `SIGKILL learner rank 1`."""
    stops: Counter[str]
    done: Counter[str]
    drained_s: float | None
    """Seconds from the last kill to the run's end; None if that never came."""
    surprises: Counter[str]
    injected_s: tuple[float, float]
    """The first and the last moment of the killing, in seconds since the epoch."""
    left_behind: int = 0
    """Objects of partial rollouts in the store once the run has finished."""
    machines_left: int = 0
    """Machines of the fleet that are still there then."""

    @property
    def is_long(self) -> bool:
        began, ended = self.injected_s
        return ended - began >= LONG_S

    def complaints(self, snapshots_s: Sequence[float], shown: Mapping[str, int]) -> list[str]:
        """Returns why the storm was not withstood, whatever the history says; of a long storm also what it lacks."""
        return self._broken() + (self._lacks(snapshots_s, shown) if self.is_long else [])

    def remarks(self, snapshots_s: Sequence[float], shown: Mapping[str, int]) -> list[str]:
        """Returns what a short storm lacks. The report lists it; the storm can be withstood all the same."""
        return [] if self.is_long else self._lacks(snapshots_s, shown)

    def _broken(self) -> list[str]:
        """Returns the faults that a storm of no length may end with."""
        surprises = self._unforeseen(of_celery=False)
        told = [
            (not self.kills.total(), "nobody was killed"),
            (self.drained_s is None, "the run was not finished after the last kill"),
            (self.left_behind, f"{self.left_behind} stored partial rollouts were left behind"),
            (self.machines_left, f"{self.machines_left} machines of the fleet were not ended"),
            (surprises, f"{len(surprises)} kinds of surprise, the first: {surprises[:1]}"),
        ]
        return [what for wrong, what in told if wrong]

    def _unforeseen(self, of_celery: bool) -> list[str]:
        lines = [line for line in self.surprises if not foreseen(line)]
        return [line for line in lines if line.startswith(CELERY) == of_celery]

    def _lacks(self, snapshots_s: Sequence[float], shown: Mapping[str, int]) -> list[str]:
        """Returns what the storm lacks. `shown`: the result of `met`."""
        began, ended = self.injected_s
        rate = KILLS_PER_S if self.is_long else FEWEST_KILLS_PER_S
        least = math.ceil(rate * (ended - began))
        spared = spared_by(self.kills)
        stretches = max(1, int((ended - began) / STRETCH_S))
        edges = [began + number * (ended - began) / stretches for number in range(stretches + 1)]
        unseen = [
            f"{start - began:.0f}-{end - began:.0f} s"
            for start, end in pairwise(edges)
            if not any(start <= at <= end for at in snapshots_s)
        ]
        late = self.drained_s is not None and self.drained_s > DRAIN_S
        surprises = self._unforeseen(of_celery=True)
        told = [
            *((not often, f"not once {what}") for what, often in shown.items()),
            (late, f"the run was not finished within {DRAIN_S:.0f} s after the last kill"),
            (self.kills.total() < least, f"{self.kills.total()} kills are fewer than {least}"),
            (spared, f"never killed: {', '.join(spared)}"),
            (unseen, f"no snapshot in {', '.join(unseen)}"),
            (surprises, f"{len(surprises)} kinds of surprise of Celery's, the first: {surprises[:1]}"),
        ]
        return [what for wrong, what in told if wrong]

    def report(self, verdict: Verdict) -> str:
        rate = verdict.trained / max(self.seconds, 1e-9)
        drained = "never" if self.drained_s is None else f"{self.drained_s:.1f} s after the last kill"
        surprises = [f"  {count:4d} × {line}" for line, count in self.surprises.most_common()]
        return "\n".join(
            [
                f"seed        {self.seed}",
                f"rules       {self.rules}",
                f"kills       {self.kills.total():,} in {self.seconds:.0f} s: {_counts(self.kills)}",
                f"learner     {_counts(self.learners)}",
                f"stops       {self.stops.total():,}: {_counts(self.stops)}; {_counts(self.done)}",
                f"groups      {verdict.trained:,} trained, {rate:.0f}/s, {60 * rate:,.0f}/min",
                f"drained     {drained}",
                str(verdict),
                *(["surprises, and tracebacks in the logs", *surprises] if surprises else []),
            ]
        )


def met(config: Config, verdict: Verdict, done: Counter[str]) -> dict[str, int]:
    """Returns the events that a long storm under these rules meets, and how often. `done`: see `StormSummary`."""
    seen = verdict.served
    often = {
        "weights that came whole": seen.routes["anchors"] if seen else 0,
        "weights that came by a difference": seen.routes["differences"] if seen else 0,
        "weights from the store": seen.bytes["store"] if seen else 0,
        "weights from a peer": seen.bytes["peer"] if seen else 0,
        "a worker that went on where another was killed": verdict.continued,
        "a partial rollout of tokens that the model does not have": verdict.dropped,
    }
    if verdict.rounds:
        often["a round of evaluation that was answered"] = verdict.rounds.answered
        often["a round that newer versions overtook"] = verdict.rounds.overtaken
        often["a round that was given up"] = verdict.rounds.given_up
        often["a keeper that was killed"] = verdict.rounds.keepers_killed
    if verdict.fleet:
        often["a machine that was dismissed"] = verdict.fleet.dismissed
        often["a machine that its controller ended"] = verdict.fleet.ended
        often["a controller that took over"] = verdict.fleet.terms - 1
    if done["rewinds"] >= MANY_REWINDS:
        often["a rewind"] = verdict.rewound
    if config.staleness.s and done["notices"] >= MANY_NOTICES:
        often["a worker that handed its tasks back"] = verdict.handed_back
    if verdict.shares:
        often["a stretch of admissions by the weights of a mixture"] = verdict.shares.stretches
    if any(environment.kind == "interactive" for environment in config.trained_environments):
        often["an answer of the environment"] = verdict.answered
    if config.rollout.mode == "in-flight" and config.staleness.s:
        often["a group of several versions"] = verdict.mixed
    return often


def foreseen(surprise: str) -> bool:
    """Returns whether a traceback of that role that ends with that line means only that a service was away."""
    return any(re.match(pattern, surprise) for pattern in FORESEEN)


def spared_by(kills: Counter[str]) -> list[str]:
    """Returns the roles that were never killed."""
    return [role for role in KILLS if role != "power cut" and not kills[role]]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common() if count)
