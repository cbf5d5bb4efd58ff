"""Every role dies right after every step it takes, once and twice in a row; the run goes on as if it had not.

`make test` tries a twelfth of the points, which the session's seed draws; `make proof` tries every point and all pairs,
of which CI draws a few (`tests/tiers.py`).
"""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from echo_queue import failpoints
from tests.faults.crash_points import points, unguarded_io
from tests.faults.crash_points.cases import (
    BY_CHANCE,
    MOST_TRIES,
    BaseModelCase,
    Case,
    LauncherCase,
    LearnerCase,
    Places,
    RewindCase,
    ServicesCase,
    Submissions,
    SupervisorCase,
    WorkerCase,
)
from tests.faults.crash_points.crashing_run import DEADLINE_S, CrashHarness
from tests.tiers import few

DRAWN_POINTS = 1 / 12
"""The share of the points of each role that `make test` draws."""
FEW_PAIRS = 2
"""Pairs of each role that CI draws."""
AT_A_TIME = 2
SIMPLE = {
    "learner": LearnerCase,
    "operator": RewindCase,
    "worker": WorkerCase,
    "services": ServicesCase,
    "supervisor": SupervisorCase,
    "launcher": LauncherCase,
    "base model": BaseModelCase,
}
UNREACHED = {
    ("learner", "get weights/manifest.json"): "a version that is there already: a lineage publishes each only once",
    ("learner", "get weights"): "a route to such a version",
    ("learner", "turn"): "a second process that goes on with a lineage that another began",
    ("operator", "turn"): "a second process that goes on with a lineage that another began",
    ("operator", "delete replay"): "a commit of groups that still lie in replay: a rewind goes back",
    ("learner", "suspend"): "a worker of which many groups in a row are bad; the next learner judges it anew",
    ("learner", "probe_room"): "a learner that waits for groups while trained ones are not committed: by chance",
    ("worker", "discard"): "a partial rollout that is gone, as its task was completed meanwhile: by chance",
    ("worker", "remove folder"): "two workers that fetch the base model into one folder at the same moment",
    ("celery", "submission_counts"): "the reconciler reads held-out sets, of which no case submits one",
    ("services", "look at the bucket"): "of an external store",
}
"""Steps that no case here takes, and when they are taken."""


class RoleCases:
    """Runs the cases of one role, numbered, and records the steps that were taken in all of them."""

    def __init__(self, harness: CrashHarness, role: str) -> None:
        self.harness, self.role = harness, role
        self.record = harness.directory / f"steps-of-{role.replace(' ', '-')}"
        self._ends = ExitStack()
        self._make: Callable[[str, Places], Case] = lambda name, places: SIMPLE[role](harness, name, places)

    def __enter__(self) -> "RoleCases":
        if self.role not in SIMPLE:
            run = Submissions(self.harness, self.role, helper=self.role == "submitter")
            self._make = self._ends.enter_context(run).case
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def run_case(self, name: str, places: Places) -> tuple[int, ...]:
        """The exit codes of the processes that were to die at `places`, after the verdict.

        Where chance has a part in whether a process comes to the first of them, a case that did not is run again.
        """
        for number in range(MOST_TRIES):
            codes = self._run_case(f"{name}-{number}", places)
            if codes[0] == failpoints.CRASHED or places[0] not in BY_CHANCE:
                break
        return codes

    def _run_case(self, name: str, places: Places) -> tuple[int, ...]:
        with self._make(f"{self.role.replace(' ', '-')}-{name}", places) as case:
            try:
                case.prepare(places[0])
                codes = tuple(case.run_role(place, self.record) for place in places)
                assert set(codes) <= {0, failpoints.CRASHED}, f"a process ended with {codes}"
                assert case.run_role("", self.record) == 0, "the last process failed"
                case.verdict()
            except BaseException as error:
                error.add_note(f"died at {' and then at '.join(places)}\n{case.told()}")
                raise
        return codes

    def run_cases(self, cases: Sequence[Places], kind: str) -> list[tuple[int, ...]]:
        with ThreadPoolExecutor(AT_A_TIME if self.role in SIMPLE else 1) as pool:  # the others share one run
            return list(pool.map(lambda number: self.run_case(f"{kind}-{number}", cases[number]), range(len(cases))))


def reachable(role: str) -> list[str]:
    return [point for point in points.points(role) if (role, point) not in UNREACHED]


@pytest.mark.slow
def test_nothing_is_written_sent_or_spawned_but_through_a_failpoint() -> None:
    assert unguarded_io.unseen() == []
    assert unguarded_io.idle_reasons() == [], "what is excused here is gone"


@pytest.mark.slow
def test_every_failpoint_is_a_point_of_some_role() -> None:
    known = {point for role in points.ROLES for point in points.points(role)} | {*OPERATORS, *SWEEP}
    known |= {failpoint.step for failpoint in points.failpoints() if failpoint.file.startswith(GIVEN_AGAIN)}
    known |= {f"{verb} *" for verb in ("put", "put once", "get", "head", "list", "delete", "look at", "create")}
    assert {failpoint.step for failpoint in points.failpoints()} <= known


GIVEN_AGAIN = (
    *(f"echo_queue/queue/{client}.py" for client in ("operator", "monitor", "fleet", "update_records")),
    "echo_queue/fleet/drivers/",
    "learner/export/exporter.py",
)
"""The clients of people, and of a fleet's controller, who give a command that was cut off again; and the drivers of a
fleet and the learner's exporter, which die after each of their steps in `tests/fleet` and `tests/learner/export`."""
OPERATORS = (
    *("write outcome", "rename outcome", "remove outcome", "set services aside"),
    *("write password", "rename password"),
    *("write weights", "rename weights"),
    *("write export", "make repository", "push model"),
    *("send submission", "tell refusal"),
    *("write notice", "rename notice", "remove notice"),
    *("admit user", "offer grant", "save users", "remove users", "remove grant", "note revocation"),
    "forget invitation",
    *("claim grant", "read grant", "write invitation", "rename invitation"),
)
"""Steps of commands that people give, and give again, and of the watcher of notices, which writes at each poll."""
SWEEP = ("places", "pointed")
"""Reads of the sweep for orphaned payloads, ten minutes into a run, before its one delete."""


@pytest.mark.slow
@pytest.mark.parametrize("role", points.ROLES)
def test_a_role_may_die_after_any_of_its_steps(
    harness: CrashHarness, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """… and it takes no step that the code does not name."""
    places = reachable(role)
    chosen = few(places, math.ceil(DRAWN_POINTS * len(places)), f"points of the {role}")
    taken = die_singly(harness, role, chosen, "drawn")
    assert taken <= {*places, "discard", "probe_room"}
    with capsys.disabled():
        print(f" [{len(chosen)} of {len(places)} points of the {role}]", end="")


@pytest.mark.proof(kind="single deaths", share=0.0)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("role", points.ROLES)
def test_a_role_may_die_after_each_of_its_steps(
    harness: CrashHarness, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """… and the steps it takes, in all these processes, are exactly those that the code names."""
    places = reachable(role)
    taken = die_singly(harness, role, places, "single")
    assert sorted(taken - {"discard", "probe_room"}) == places
    with capsys.disabled():
        print(f" [{len(places)} points of the {role}]", end="")


def die_singly(harness: CrashHarness, role: str, places: Sequence[str], kind: str) -> set[str]:
    """Lets a process of the role die at each of these points; returns the steps that were taken by all processes."""
    with RoleCases(harness, role) as role_cases:
        role_cases.record.unlink(missing_ok=True)
        codes = role_cases.run_cases([(place,) for place in places], kind)
        missed = [place for place, (code,) in zip(places, codes, strict=True) if code != failpoints.CRASHED]
        assert not missed, "never came to these points"
        return set(role_cases.record.read_text().split("\n")) - {""}


@pytest.mark.proof
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("role", points.ROLES)
def test_a_role_may_die_and_die_again(harness: CrashHarness, role: str, capsys: pytest.CaptureFixture[str]) -> None:
    """… and the first death comes as surely as it does alone; the second only where the way still leads there."""
    places = reachable(role)
    pairs = list(product(places, places))
    chosen = few(pairs, FEW_PAIRS, role)
    with RoleCases(harness, role) as role_cases:
        codes = role_cases.run_cases(chosen, "pair")
    missed = [pair for pair, (first, _) in zip(chosen, codes, strict=True) if first != failpoints.CRASHED]
    assert not missed, "never came to the first of these points, though a single death does"
    twice = sum(code == (failpoints.CRASHED, failpoints.CRASHED) for code in codes)
    with capsys.disabled():
        print(f" [{len(chosen)} of {len(pairs)} pairs of the {role}, {twice} died twice]", end="")


def test_the_environment_names_the_point_of_any_process(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from echo_queue.atomic_file import write_atomically;"
        f"[write_atomically(Path({str(tmp_path)!r}, name), b'data', 'file') for name in 'ab']"
    )
    environ = os.environ | {failpoints.VARIABLE: "write file#2"}
    ended = subprocess.run([sys.executable, "-c", program], env=environ, timeout=DEADLINE_S, check=False)
    assert ended.returncode == failpoints.CRASHED
    assert sorted(path.name[:2] for path in tmp_path.iterdir()) == ["a", "b."], "b has its temporary file alone"
