"""Groups per second that one worker scores, beside one process that has one call at a time.

A judge that answers after 1.5 s, as a coroutine and as code that blocks (8 processes); a reward that computes 0.2 s; a
tool that answers after 0.5 s, in each of three turns. 8 groups of 8 samples are there at once; the completer, the queue
and the environment's processes are real, and the samples are written beforehand. Ours is measured once its processes
are there. *Allowed* is what the waits allow: a group's, since all 8 wait at once; and what the cores allow: as many
plain processes, which only compute. One at a time is the same worker with `environment.processes = 1` and
`concurrent_calls = 1`.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import slow_rewards
from benchmarks.rows import Rows
from benchmarks.slow_rewards import JUDGE_S, TOOL_S, compute
from benchmarks.verdict import conclude
from tests.workers.small import save_model
from tests.workers.stage import Stage, generated, stage
from tests.workers.worker_harness import WorkerHarness

GROUPS, SAMPLES, TURNS, COMPUTE_S = 8, 8, 3, 0.2
ONE_AT_A_TIME = {"processes": 1, "concurrent_calls": 1}
TARGET_SHARE = 0.9


@dataclass(frozen=True)
class Work:
    """An environment. `groups`: those scored one at a time; `wait_s`: of a group; 0 for what computes."""

    name: str
    environment: Mapping[str, Any]
    groups: int
    wait_s: float


@dataclass(frozen=True)
class Figures:
    name: str
    groups_per_s: float
    one_at_a_time_per_s: float
    allowed_per_s: float

    @property
    def ratio(self) -> float:
        return self.groups_per_s / self.one_at_a_time_per_s

    @property
    def share(self) -> float:
        return self.groups_per_s / self.allowed_per_s


def function(name: str, **settings: Any) -> dict[str, Any]:
    return {"kind": "function", "function": f"{slow_rewards.__name__}:{name}", **settings}


WORKS = (
    Work("judge, async", function("judge"), 3, JUDGE_S),
    Work("judge, blocking", function("blocking_judge", processes=GROUPS), 3, JUDGE_S),
    Work("computed", function("computed"), GROUPS, 0.0),
    Work("tool, async", function("Tools", kind="interactive", max_turns=TURNS), 1, TURNS * TOOL_S),
)


def main(as_json: bool) -> int:
    rounds = rounds_of(COMPUTE_S)
    with tempfile.TemporaryDirectory() as name:
        folder = save_model(Path(name, "model"), seed=0)
        rows, figures = Rows(), list[Figures]()
        for work in WORKS:
            with rows.row(work.name):
                figures.append(one := measured(Path(name), folder, work, rounds))
                rates = f"{one.groups_per_s:5.2f} groups/s, one at a time {one.one_at_a_time_per_s:.2f}"
                print(f"{one.name:16} {rates} (× {one.ratio:.1f}), {one.share:.2f} of what is allowed")
    return conclude(figures, rows.promises | targets(figures), as_json=as_json)


def targets(figures: list[Figures]) -> dict[str, bool]:
    return {f"{one.name}: {TARGET_SHARE} of what is allowed": one.share >= TARGET_SHARE for one in figures}


def measured(directory: Path, folder: Path, work: Work, rounds: int) -> Figures:
    ours = rate(directory, folder, work.environment, GROUPS, rounds, warm=3 * GROUPS)
    one = rate(directory, folder, {**work.environment, **ONE_AT_A_TIME}, work.groups, rounds, warm=0)
    allowed = GROUPS / work.wait_s if work.wait_s else computed_per_s(rounds)
    return Figures(work.name, ours, one, allowed)


def rate(
    directory: Path, folder: Path, environment: Mapping[str, Any], groups: int, rounds: int, *, warm: int
) -> float:
    """Scores `warm` groups, then `groups` more; returns how many of the latter in a second."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        run = WorkerHarness(
            Path(name),
            folder,
            environment=dict(environment),
            model={"max_new_tokens": 64},
            rollout={"group_size": SAMPLES, "concurrent_groups": GROUPS},
            learner={"batch_groups": 1},
            staleness={"s": 4 * GROUPS},
        )
        try:
            with stage(run, folder, ["What?"] * (warm + groups), rounds=rounds) as worker:
                if warm:
                    scored_s(worker, warm)
                return groups / scored_s(worker, groups)
        finally:
            run.end()


def scored_s(worker: Stage, groups: int) -> float:
    leased = worker.lease(groups)
    assert len(leased) == groups, f"leased {len(leased)} of {groups} groups"
    began_s = time.monotonic()
    worker.submit(*leased)
    generated(worker, groups)
    return time.monotonic() - began_s


def rounds_of(seconds: float) -> int:
    """Returns the rounds that take so long on one core."""
    rounds = 1_000_000
    began_s = time.process_time()
    compute(rounds)
    return round(rounds * seconds / (time.process_time() - began_s))


def computed_per_s(rounds: int) -> float:
    """Returns how many rewards as many plain processes compute in a second as the environment may have."""
    with ProcessPoolExecutor(max(2, os.cpu_count() or 1)) as processes:
        list(processes.map(compute, [1] * 8))
        began_s = time.monotonic()
        list(processes.map(compute, [rounds] * GROUPS))
        return GROUPS / (time.monotonic() - began_s)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures, targets and ok as one line at the end")
    sys.exit(main(parser.parse_args().json))
