"""What evaluation costs training: utilisation and trained tokens, with evaluation at its default and without it.

The real queue, workers, weights and rounds of evaluation; engines at a fixed pace on a small model, and a learner that
takes its time and trains nothing (benchmarks.capacity). The machines are those that the capacity model wants for that
learner. The held-out answers of a round come to `SHARE` of what is trained between two rounds. Both are run in turns.

    python -m benchmarks.evaluation [--seconds 60] [--rounds 2] [--json]
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from benchmarks.capacity.case import BATCH, SAMPLES, STEP_S, WARM_UP, Case, planned, trace_of
from benchmarks.capacity.live import settings
from benchmarks.capacity.timed_learner import Pace, timed
from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.plan import Plan
from benchmarks.fleet.run import Run, running
from benchmarks.fleet.trace import Trace
from benchmarks.verdict import conclude
from echo_queue.config import Evaluation
from echo_queue.queue import Caller, Evaluations, RunRules
from echo_queue.records import Version
from learner.evaluation.rounds import DEADLINE_S as STEP_DEADLINE_S
from learner.evaluation.rounds import EvaluationRounds
from tests.workers.worker_harness import tensors_of

NAME, SHARE = "held-out", 0.04
"""`SHARE`: as 200 prompts that are held out beside updates of 32 × 8 samples, every 20 updates."""
LOSS = 0.02
SEED, TRAIN_S, DEADLINE_S = 1, 1.0, 120.0
EVERY = Evaluation(name=NAME).every_updates
PROMPTS = round(SHARE * EVERY * BATCH * SAMPLES)
VOCABULARY = 1 << 31


@dataclass(frozen=True)
class Leg:
    """A run: `rounds` of evaluation were answered, `given_up` were not. Tokens are those of trained groups."""

    evaluated: bool
    updates: int
    utilisation: float
    tokens_per_s: float
    rounds: int
    given_up: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run, behind its warm-up")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    legs = []
    for number in range(2 * arguments.rounds):
        legs.append(leg(evaluated=number % 2 == 1, seconds=arguments.seconds))
        print(legs[-1], flush=True)
    without, beside = ([one for one in legs if one.evaluated is evaluated] for evaluated in (False, True))
    ratios = {name: median(beside, name) / median(without, name) for name in ("utilisation", "tokens_per_s")}
    for name, ratio in ratios.items():
        print(f"{name}: {median(beside, name):.3f} with evaluation, {median(without, name):.3f} without: {ratio:.3f}")
    targets = {f"{name} loses at most {LOSS:.0%}": ratio >= 1 - LOSS for name, ratio in ratios.items()}
    targets["every round was answered"] = all(one.rounds and not one.given_up for one in beside)
    return conclude({"legs": legs, "ratios": ratios}, targets, as_json=arguments.json)


def median(legs: list[Leg], name: str) -> float:
    return float(statistics.median(getattr(one, name) for one in legs))


def leg(*, evaluated: bool, seconds: float) -> Leg:
    """Runs the fleet and its learner for so long."""
    case, _ = planned(SEED)
    trace = replace(trace_of(case, TRAIN_S), samples=SAMPLES)
    held_out: dict[str, Any] = {"evaluation": [{"name": NAME}]} if evaluated else {}
    with tempfile.TemporaryDirectory() as temporary, running(Path(temporary), settings(case) | held_out) as run:
        directory = Path(temporary)
        trace.write(directory / "trace.json")
        plan = Plan(directory / "trace.json", directory / "counts", STEP_S)
        fleet = Fleet(run.harness.path, directory, plan, case.machines, boot_s=0.0)
        try:
            fleet.start()
            run.await_workers(case.machines)
            updates, tokens, took_s = learned(run, case, trace, seconds)
        finally:
            fleet.end()
        lines = map(orjson.loads, Evaluations(Caller.connect(run.harness.config, "monitor")).lines())
        given_up = [bool(line["given_up"]) for line in lines]
    return Leg(evaluated, updates, updates * TRAIN_S / took_s, tokens / took_s, given_up.count(False), sum(given_up))


def learned(run: Run, case: Case, trace: Trace, seconds: float) -> tuple[int, int, float]:
    """Trains for so long. Returns the updates, the tokens that they trained, and the seconds that they took."""
    harness = run.harness
    harness.rules = RunRules.of(harness.config)
    harness.learner_begins()
    tensors = tensors_of(Path(harness.config.base_model))
    harness.publish(0, dict(tensors))
    harness.hold_out(NAME, [f"What is the sum of {number} and 3?" for number in range(PROMPTS)])
    run.submit((round(seconds / TRAIN_S) + WARM_UP + case.s + 3) * BATCH)
    caller = Caller.connect(harness.config, "learner").within(STEP_DEADLINE_S)
    begun = Version(harness.lineage, 0)
    rounds = EvaluationRounds(harness.config, caller, harness.store, vocabulary=VOCABULARY, begun=begun)
    pace = Pace(TRAIN_S, case.publish * TRAIN_S, case.kappa)
    with timed(run, pace, dict(tensors), rounds.observe) as learner:
        learner.ask_ahead = rounds.ask_ahead if harness.config.evaluation else learner.ask_ahead
        while learner.version < WARM_UP:
            learner.update(DEADLINE_S)
        began_s, tokens = time.monotonic(), 0
        while time.monotonic() < began_s + seconds:
            tokens += sum(sum(trace.lengths(index)) for index in learner.update(DEADLINE_S))
        return learner.version - WARM_UP, tokens, time.monotonic() - began_s


if __name__ == "__main__":
    sys.exit(main())
