"""Groups per second that one worker scores, beside one process that has one call at a time.

A judge that answers after 1.5 s, as a coroutine and as code that blocks (8 processes); a reward that computes 0.2 s; a
tool that answers after 0.5 s, in each of three turns. 8 groups of 8 samples are there at once, and 12 for each core
where the reward computes. The completer, the queue and the environment's processes are real, and the samples are
written beforehand. Ours is measured once its processes are there. One at a time is the same worker with
`environment.processes = 1` and `concurrent_calls = 1`.

*Allowed* is what the waits allow: a group's, since all 8 wait at once. Of what computes it is what the cores allow
beside the worker, the queue, the learner, and whatever else runs on the machine: what there would be if each process of
the environment, of which there is one for each core, had something to compute all the time. Linux tells how long a
process computed, and how long it was ready to and waited for a core. The rest is lost: it waited for the next call, or
at the end for the other processes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import slow_rewards
from benchmarks.rows import Rows
from benchmarks.slow_rewards import JUDGE_S, TOOL_S, compute
from benchmarks.verdict import conclude
from echo_queue.config import Environment
from tests.workers.small import save_model
from tests.workers.stage import Stage, generated, stage
from tests.workers.worker_harness import WorkerHarness
from workers.environments.keeper import descendants
from workers.environments.scorer import most_processes

GROUPS, SAMPLES, TURNS, COMPUTE_S = 8, 8, 3, 0.2
PROCESSES = most_processes(Environment())
ONE_AT_A_TIME = {"processes": 1, "concurrent_calls": 1}
TARGET_SHARE = 0.9


@dataclass(frozen=True)
class Work:
    """An environment. `single`: the groups scored one at a time; `wait_s`: of a group; 0 for what computes."""

    name: str
    environment: Mapping[str, Any]
    single: int
    wait_s: float
    groups: int = GROUPS


@dataclass(frozen=True)
class Rate:
    """`busy`: how many of the environment's processes computed or were ready to, on average."""

    groups_per_s: float
    busy: float


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
    Work("computed", function("computed"), GROUPS, 0.0, groups=12 * PROCESSES),
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
    ours = rate(directory, folder, work.environment, work.groups, rounds, warm=3 * GROUPS)
    one = rate(directory, folder, {**work.environment, **ONE_AT_A_TIME}, work.single, rounds, warm=0)
    allowed = work.groups / work.wait_s if work.wait_s else ours.groups_per_s / ours.busy * PROCESSES
    return Figures(work.name, ours.groups_per_s, one.groups_per_s, allowed)


def rate(directory: Path, folder: Path, environment: Mapping[str, Any], groups: int, rounds: int, *, warm: int) -> Rate:
    """Scores `warm` groups, then `groups` more; returns the rate of the latter."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        run = WorkerHarness(
            Path(name),
            folder,
            environment=dict(environment),
            model={"max_new_tokens": 64},
            rollout={"group_size": SAMPLES, "concurrent_groups": GROUPS},
            learner={"batch_groups": 1},
            staleness={"s": warm + groups},
        )
        try:
            with stage(run, folder, ["What?"] * (warm + groups), rounds=rounds) as worker:
                if warm:
                    scored_s(worker, warm)
                pids = [pid for one in worker.scorer.processes for pid in descendants(one.pid)]
                before_s = ready_s(pids)
                took_s = scored_s(worker, groups)
                return Rate(groups / took_s, (ready_s(pids) - before_s) / took_s)
        finally:
            run.end()


def ready_s(pids: Sequence[int]) -> float:
    """Returns how long the processes have computed or waited for a core.

    Source: Linux, Documentation/scheduler/sched-stats.rst.
    """
    words = [Path(f"/proc/{pid}/schedstat").read_text().split() for pid in pids]
    return sum(int(computed_ns) + int(waited_ns) for computed_ns, waited_ns, _ in words) / 1e9


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures, targets and ok as one line at the end")
    sys.exit(main(parser.parse_args().json))
