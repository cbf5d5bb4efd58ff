"""The cost of workers that are taken away, with token-level migration and without it, on the same seeded trace.

Rollout workers (real processes with the transformers engine, at a fixed pace) generate groups with heavy-tailed lengths
from a real queue, whose learner publishes new weights after each batch. One worker in every `--every` seconds is killed
with SIGKILL, and after `--boot` seconds another machine takes its place. *wasted* counts tokens that were sampled and
are in no group that reached the learner. A second run gives a notice of `--notice` seconds before each kill; in a third
one the worker is dismissed as a fleet's controller does it: half of that time to rest, half of it to leave.

    python -m benchmarks.preemption [--groups 128] [--every 20] [--rounds 1] [--json]

*without* stores no partial rollouts: a task whose worker dies begins again from scratch.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.plan import Plan
from benchmarks.fleet.run import Run, running
from benchmarks.fleet.trace import Trace
from benchmarks.laboratory import machine
from benchmarks.verdict import print_verdict
from echo_queue.queue import Caller, FleetQueue, WorkerOrder

WASTE_TARGET = 0.05
NEVER_S = 1e6
SAMPLES, BATCH = 4, 16
LEARNER_S = 0.1
"""Seconds between two turns of the learner."""
DEADLINE_S = 900.0


@dataclass(frozen=True)
class Arm:
    """The settings of a run. `progress_s`: interval of storing partial rollouts; `notice_s`: None kills at once.

    `dismissed`: the notice comes from a controller, through the queue.
    """

    name: str
    groups: int
    progress_s: float
    notice_s: float | None = None
    dismissed: bool = False


class Dismissals:
    """The orders of a controller: a worker hears that it should rest, and after `half_s` that it should leave."""

    def __init__(self, queue: FleetQueue, half_s: float) -> None:
        self._queue = queue
        self._half_s = half_s
        self._resting: list[tuple[float, str]] = []
        queue.lead(DEADLINE_S)

    def begin(self, worker: str) -> None:
        self._queue.order(WorkerOrder("rest"), [worker])
        self._resting.append((time.monotonic() + self._half_s, worker))

    def sweep(self) -> None:
        """Tells those to leave that have rested for long enough."""
        due = [one for one in self._resting if one[0] <= time.monotonic()]
        self._resting = [one for one in self._resting if one not in due]
        self._queue.order(WorkerOrder("leave", self._half_s), [worker for _, worker in due])


@dataclass(frozen=True)
class Outcome:
    """The figures of one run until its last group was drained. Rates count the groups that the learner got."""

    arm: str
    groups: int
    seconds: float
    taken: int
    sampled_tokens: int
    trained_tokens: int
    wasted_share: float
    groups_per_s: float
    tokens_per_s: float
    overdue: int
    """Number of machines that had not left within their notice."""
    lapsed: int
    """Number of leases that ran out: of a machine that was killed, or that was not heard for so long."""
    identity: bool
    busy_share: float
    """Share of this machine's processors in use, by any process: near 1 the engines cannot keep their pace."""

    @property
    def wasted_tokens(self) -> int:
        return self.sampled_tokens - self.trained_tokens


@dataclass(frozen=True)
class Figures:
    machine: str
    outcomes: tuple[Outcome, ...]
    wasted_share: Mapping[str, float]
    """Share of wasted tokens by arm, over all rounds."""
    groups_ratio: float
    """Groups per second with migration, divided by those without."""
    tokens_ratio: float


def run_arm(arm: Arm, trace: Trace, options: argparse.Namespace) -> Outcome:
    with tempfile.TemporaryDirectory() as name, running(Path(name), _settings(arm, trace, options)) as run:
        directory = Path(name)
        trace.write(directory / "trace.json")
        plan = Plan(directory / "trace.json", directory / "counts", 1 / options.steps_per_s)
        fleet = Fleet(run.harness.path, directory, plan, options.workers, options.boot)
        try:
            fleet.start()
            run.await_workers(options.workers)
            return _run_arm(run, fleet, arm, trace.losses(options.workers, options.every))
        finally:
            fleet.end()


def _run_arm(run: Run, fleet: Fleet, arm: Arm, losses: Iterator[tuple[float, int]]) -> Outcome:
    run.submit(arm.groups)
    caller = Caller.connect(run.harness.config, "controller", DEADLINE_S)
    dismissals = Dismissals(FleetQueue(caller), (arm.notice_s or 0.0) / 2)
    before, began = machine.now(), time.monotonic()
    due_s, place = next(losses)
    while run.groups < arm.groups:
        passed_s = time.monotonic() - began
        if passed_s > DEADLINE_S:
            raise TimeoutError(f"{run.groups} of {arm.groups} groups within {DEADLINE_S:g} s")
        if passed_s >= due_s:
            fleet.take(place, arm.notice_s, dismissals.begin if arm.dismissed else None)
            due_s, place = next(losses)
        fleet.sweep()
        dismissals.sweep()
        run.turn()
        time.sleep(LEARNER_S)
    seconds, busy = time.monotonic() - began, machine.busy_share(before)
    fleet.wait_out()
    return Outcome(
        arm=arm.name,
        groups=run.groups,
        seconds=round(seconds, 1),
        taken=fleet.taken,
        sampled_tokens=fleet.sampled,
        trained_tokens=run.tokens,
        wasted_share=round(1 - run.tokens / fleet.sampled, 4),
        groups_per_s=round(run.groups / seconds, 3),
        tokens_per_s=round(run.tokens / seconds, 1),
        overdue=len(fleet.overdue),
        lapsed=run.lapsed,
        identity=run.harness.queue.audit().ok,
        busy_share=round(busy, 2),
    )


def _settings(arm: Arm, trace: Trace, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns settings by which nothing becomes too old or dead: all waste was lost with its machine."""
    return {
        "model": {"max_new_tokens": trace.longest, "max_prompt_tokens": 64},
        "rollout": {
            "group_size": SAMPLES,
            "concurrent_groups": options.concurrent,
            "progress_s": arm.progress_s,
            "workers": options.workers,
            "temperature": 1.0,
        },
        "learner": {"batch_groups": BATCH},
        "staleness": {"s": arm.groups // BATCH + 1},
        "queue": {"lease_s": options.lease, "max_attempts": 100, "stall_deadline_s": DEADLINE_S},
        "telemetry": {"heartbeat_s": 0.5},
    }


def arms(options: argparse.Namespace) -> tuple[Arm, ...]:
    return (
        Arm("without migration", options.groups, NEVER_S),
        Arm("with migration", options.groups, options.progress),
        Arm(f"notice of {options.notice:g} s", options.notice_groups, options.progress, options.notice),
        Arm(
            f"dismissal in {options.notice:g} s",
            options.notice_groups,
            options.progress,
            options.notice,
            dismissed=True,
        ),
    )


def measure(options: argparse.Namespace) -> Figures:
    outcomes = []
    for number in range(options.rounds):
        for arm in arms(options):
            outcomes.append(run_arm(arm, Trace(options.seed + number, SAMPLES, options.longest), options))
            if not options.json:
                _print_outcome(outcomes[-1])
    return figures_of(outcomes, options)


def figures_of(outcomes: Sequence[Outcome], options: argparse.Namespace) -> Figures:
    played = arms(options)
    without, with_migration = (_of(outcomes, arm) for arm in played[:2])
    return Figures(
        machine=machine.business(),
        outcomes=tuple(outcomes),
        wasted_share={arm.name: _wasted(_of(outcomes, arm)) for arm in played},
        groups_ratio=round(_rate(with_migration, "groups") / _rate(without, "groups"), 3),
        tokens_ratio=round(_rate(with_migration, "trained_tokens") / _rate(without, "trained_tokens"), 3),
    )


def _of(outcomes: Sequence[Outcome], arm: Arm) -> list[Outcome]:
    return [one for one in outcomes if one.arm == arm.name]


def _wasted(outcomes: Sequence[Outcome]) -> float:
    return round(sum(one.wasted_tokens for one in outcomes) / sum(one.sampled_tokens for one in outcomes), 4)


def _rate(outcomes: Sequence[Outcome], what: str) -> float:
    return float(sum(getattr(one, what) for one in outcomes) / sum(one.seconds for one in outcomes))


def targets_of(figures: Figures, options: argparse.Namespace) -> dict[str, bool]:
    without, with_migration, noticed, dismissed = (figures.wasted_share[arm.name] for arm in arms(options))
    notices, dismissals = ([one for one in figures.outcomes if one.arm == arm.name] for arm in arms(options)[2:])
    return {
        f"with migration at most {WASTE_TARGET:.0%} of the tokens are wasted": with_migration <= WASTE_TARGET,
        "without it more are, so the kills are real": without > with_migration,
        f"a notice of {options.notice:g} s loses no token": noticed == 0 and all(one.taken for one in notices),
        "a dismissal by the controller loses no token": dismissed == 0 and all(one.taken for one in dismissals),
        "who was told left in time": not any(one.overdue for one in (*notices, *dismissals)),
        "migration is not slower": figures.tokens_ratio >= 1,
        "the identity holds": all(one.identity for one in figures.outcomes),
    }


def _print_outcome(one: Outcome) -> None:
    print(
        f"{one.arm:<18} {one.groups} groups in {one.seconds:5.1f} s: {one.groups_per_s:.2f} groups/s, "
        f"{one.tokens_per_s:5.0f} tokens/s; {one.taken} machines taken, {one.wasted_tokens:6,} of "
        f"{one.sampled_tokens:,} tokens wasted ({one.wasted_share:.2%}); {one.lapsed} leases ran out; "
        f"processors {one.busy_share:.0%} busy",
        flush=True,
    )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=128, help=f"groups of a run, a multiple of {BATCH}")
    parser.add_argument("--notice-groups", type=int, default=48, help="groups of the run with notices")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--concurrent", type=int, default=4, help="groups that a worker generates at once")
    parser.add_argument("--every", type=float, default=20.0, help="one machine is taken in every so many seconds")
    parser.add_argument("--notice", type=float, default=25.0, help="seconds from a notice to the kill")
    parser.add_argument("--boot", type=float, default=5.0, help="seconds until another machine has started")
    parser.add_argument("--progress", type=float, default=2.0, help="rollout.progress_s")
    parser.add_argument("--lease", type=float, default=6.0, help="queue.lease_s")
    parser.add_argument("--longest", type=int, default=1200, help="model.max_new_tokens")
    parser.add_argument("--steps-per-s", type=float, default=25.0, help="pace of an engine")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round's trace; each round has its own")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    options = parser().parse_args()
    figures = measure(options)
    targets = targets_of(figures, options)
    if options.json:
        print_verdict(figures, targets)
    else:
        print(
            f"throughput with migration over without: {figures.groups_ratio:.2f} in groups, {figures.tokens_ratio:.2f} "
            f"in tokens ({figures.machine})"
        )
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
