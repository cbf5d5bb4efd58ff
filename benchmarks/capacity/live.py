"""One setting, live: its services, its fleet and its learner, for as long as the updates take."""

import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.capacity.case import BATCH, LONGEST, SAMPLES, STEP_S, WARM_UP, Case, Speeds, predict, trace_of
from benchmarks.capacity.timed_learner import Pace, TimedLearner, timed
from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.plan import Plan, late_share
from benchmarks.fleet.run import Run, running
from benchmarks.fleet.trace import Trace
from echo_queue.queue import RunRules
from tests.workers.worker_harness import tensors_of

DEADLINE_S = 300.0
LEAST_UPDATES = 5
LOADING = threading.Lock()
"""Held while a model is made and read, which transformers does in one thread only."""


@dataclass(frozen=True)
class Row:
    """A setting's figures. `publish_s`, `fetch_s`: as measured; `supply`: what whole workers give if none is idle.

    `live`, `simulated`: the learner's utilisation as measured, and as simulated, for the same `updates`. `long_run`:
    that of a simulation of many more updates, which the bounds with which `echo-queue plan` searches (`bounded`) and
    ECHO-2's rule (`serial`) predict. `late_share`: the share of their time that engines lost because this machine's
    processors were busy; predictions know it.
    """

    case: Case
    updates: int
    supply: float
    publish_s: float
    fetch_s: float
    live: float
    simulated: float
    long_run: float
    bounded: float
    serial: float
    live_lag: float
    simulated_lag: float
    late_share: float


def measure(case: Case, seconds: float, train_s: float, start: threading.Barrier) -> Row:
    """Runs a setting for so long, its warm-up included, once all that run beside it are ready as well, or lost."""
    with ExitStack() as ends:
        try:
            trace = trace_of(case, train_s)
            directory = Path(ends.enter_context(tempfile.TemporaryDirectory()))
            with LOADING:
                run = ends.enter_context(running(directory, settings(case)))
                tensors = tensors_of(Path(run.harness.config.base_model))
            trace.write(directory / "trace.json")
            plan = Plan(directory / "trace.json", directory / "counts", STEP_S)
            fleet = Fleet(run.harness.path, directory, plan, case.machines, boot_s=0.0)
            ends.callback(fleet.end)
            fleet.start()
            run.await_workers(case.machines)
        finally:
            start.wait(DEADLINE_S)
        live, learner = _learn(case, run, tensors, seconds=seconds, train_s=train_s)
        return _row(case, trace, learner, live=live, late=late_share(plan))


def _learn(
    case: Case, run: Run, tensors: Mapping[str, Tensor], *, seconds: float, train_s: float
) -> tuple[float, TimedLearner]:
    """Returns the utilisation after the warm-up, and the learner, which has ended."""
    harness = run.harness
    harness.rules = RunRules.of(harness.config)
    harness.learner_begins()  # with the rules of the case, which `Run` leaves out
    harness.publish(0, dict(tensors))
    run.submit((round(seconds / train_s) + WARM_UP + case.s + 3) * BATCH)
    ends_s = time.monotonic() + seconds
    with timed(run, Pace(train_s, case.publish * train_s, case.kappa), dict(tensors)) as learner:
        while learner.version < WARM_UP:
            learner.update(DEADLINE_S)
        learner.lags.clear()
        began_s = ended_s = time.monotonic()
        while learner.version < WARM_UP + LEAST_UPDATES or ended_s < ends_s:
            learner.update(DEADLINE_S)
            ended_s = time.monotonic()
    return (learner.version - WARM_UP) * train_s / (ended_s - began_s), learner


def _row(case: Case, trace: Trace, learner: TimedLearner, *, live: float, late: float) -> Row:
    speeds = Speeds(statistics.fmean(learner.publish_s), statistics.fmean(learner.fetch_s), late)
    updates = learner.version - WARM_UP
    predicted = predict(case, trace, speeds, updates=updates, train_s=learner.pace.train_s)
    return Row(
        case,
        updates,
        supply=round(predicted.simulated.supply, 3),
        publish_s=round(speeds.publish_s, 3),
        fetch_s=round(speeds.fetch_s, 3),
        live=round(live, 4),
        simulated=round(predicted.simulated.utilisation, 4),
        long_run=round(predicted.long_run, 4),
        bounded=round(predicted.bounded, 4),
        serial=round(predicted.serial, 4),
        live_lag=round(statistics.fmean(learner.lags), 3),
        simulated_lag=round(predicted.simulated.mean_lag, 3),
        late_share=round(late, 4),
    )


def settings(case: Case) -> dict[str, dict[str, Any]]:
    """Returns the settings of a run whose queue knows nothing of lengths, as in the simulation."""
    return {
        "model": {"max_new_tokens": LONGEST, "max_prompt_tokens": 64},
        "rollout": {
            "group_size": SAMPLES,
            "concurrent_groups": case.concurrent,
            "workers": 1,
            "temperature": 1.0,
        },
        "learner": {"batch_groups": BATCH},
        "staleness": {"s": case.s, "kappa": case.kappa},
        "queue": {"lease_s": 30.0, "stall_deadline_s": DEADLINE_S, "longest_first": False},
        "telemetry": {"heartbeat_s": 1.0},
    }
