"""What a storm did, how it ended, and whether it was one that shows anything."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from echo_queue.config import Config
from tests.faults.checker import Verdict
from tests.faults.storm.settings import KILLS

DRAIN_S = 60.0
FORESEEN = (
    "celery: billiard.exceptions.WorkerLostError: ",
    "celery: billiard.einfo.ExceptionWithTraceback: ",
    "celery: redis.exceptions.NoScriptError: No matching script",
)
"""How the lines begin that Celery logs: its pool, when one of its processes is killed; its consumer, which then ends,
when Redis dies after it has learnt a lock's script and before that is called."""
LONG_S, KILLS_PER_S, FEWEST_KILLS_PER_S = 300.0, 1_000 / 600, 0.5
"""A storm of this length kills so often; a short one, on a machine that may be busy, at least so often."""
MANY_REWINDS, MANY_NOTICES = 8, 60
"""Tries of which many come to nothing: the learner is started again in the midst, the worker holds nothing then."""
STRETCH_S = 60.0
"""In every stretch of this length somebody looked."""


@dataclass(frozen=True)
class Tally:
    """What a storm did and how it ended."""

    seed: int
    rules: str
    """Those of its run that decide most, in words."""
    seconds: float
    kills: Counter[str]
    stops: Counter[str]
    done: Counter[str]
    drained_s: float | None
    """From the last kill to the run's end; None if that never came."""
    surprises: Counter[str]
    raged_s: tuple[float, float]
    """From when until when it killed, by the clock."""

    def complaints(self, snapshots_s: Sequence[float], shown: Mapping[str, int]) -> list[str]:
        """Why this was no storm, or why one was not withstood, whatever the history says.

        `shown`: what a long one must have met, and how often it did (`met`).
        """
        began, ended = self.raged_s
        rate = KILLS_PER_S if ended - began >= LONG_S else FEWEST_KILLS_PER_S
        least = math.ceil(rate * (ended - began))
        spared = spared_by(self.kills)
        stretches = max(1, int((ended - began) / STRETCH_S))
        edges = [began + number * (ended - began) / stretches for number in range(stretches + 1)]
        unseen = [
            f"{start - began:.0f}-{end - began:.0f} s"
            for start, end in pairwise(edges)
            if not any(start <= at <= end for at in snapshots_s)
        ]
        surprises = [line for line in self.surprises if not line.startswith(FORESEEN)]
        late = self.drained_s is None or self.drained_s > DRAIN_S
        whole = ended - began >= LONG_S
        told = [
            *((whole and not often, f"not once {what}") for what, often in shown.items()),
            (late, f"the run was not finished within {DRAIN_S:.0f} s after the last kill"),
            (self.kills.total() < least, f"{self.kills.total()} kills are fewer than {least}"),
            (spared, f"never killed: {', '.join(spared)}"),
            (unseen, f"no snapshot in {', '.join(unseen)}"),
            (surprises, f"{len(surprises)} kinds of surprise, the first: {surprises[:1]}"),
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
                f"stops       {self.stops.total():,}: {_counts(self.stops)}; {_counts(self.done)}",
                f"groups      {verdict.trained:,} trained, {rate:.0f}/s, {60 * rate:,.0f}/min",
                f"drained     {drained}",
                str(verdict),
                *(["surprises, and tracebacks in the logs", *surprises] if surprises else []),
            ]
        )


def met(config: Config, verdict: Verdict, done: Counter[str]) -> dict[str, int]:
    """What a storm under these rules meets if it lasts: what, and how often it did. `done`: as in a `Tally`."""
    often = {
        "a worker that went on where another was killed": verdict.continued,
        "a partial rollout of tokens that the model does not have": verdict.dropped,
    }
    if done["rewinds"] >= MANY_REWINDS:
        often["a rewind"] = verdict.rewound
    if config.staleness.s and done["notices"] >= MANY_NOTICES:
        often["a worker that handed its tasks back"] = verdict.handed_back
    if config.environment.kind == "interactive":
        often["an answer of the environment"] = verdict.answered
    if config.rollout.mode == "in-flight" and config.staleness.s:
        often["a group of several versions"] = verdict.mixed
    return often


def spared_by(kills: Counter[str]) -> list[str]:
    """Roles that were never killed."""
    return [role for role in KILLS if role != "power cut" and not kills[role]]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common() if count)
