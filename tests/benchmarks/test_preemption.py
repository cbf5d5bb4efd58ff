"""The preemption benchmark: its trace, what it promises, and a short run of it."""

import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import orjson
import pytest

from benchmarks import preemption
from benchmarks.fleet.trace import SHORTEST, Trace
from benchmarks.preemption import Figures, Outcome

TRACE = Trace(seed=1, samples=4, longest=1200)
ENDED_S = 300.0
OPTIONS = preemption.parser().parse_args([])


def test_a_trace_is_the_same_wherever_it_is_drawn(tmp_path: Path) -> None:
    TRACE.write(tmp_path / "trace.json")
    again = Trace.read(tmp_path / "trace.json")
    assert [again.lengths(index) for index in range(50)] == [TRACE.lengths(index) for index in range(50)]
    assert list(islice(again.losses(4, 20.0), 50)) == list(islice(TRACE.losses(4, 20.0), 50))
    assert replace(TRACE, seed=2).lengths(0) != TRACE.lengths(0)


def test_a_few_samples_take_as_long_as_many() -> None:
    lengths = np.array([TRACE.lengths(index) for index in range(1000)])
    assert lengths.min() >= SHORTEST and lengths.max() == TRACE.longest
    assert lengths.mean() > 1.6 * np.median(lengths)
    longest_first = np.sort(lengths.ravel())[::-1]
    assert longest_first[: len(longest_first) // 10].sum() > 0.35 * lengths.sum(), "a tenth is a good third of the work"


def test_prompts_are_hard_for_all_their_samples() -> None:
    logs = np.log([TRACE.lengths(index) for index in range(1000)])
    assert logs.mean(axis=1).var() > 2 * logs.var(axis=1).mean()


def test_one_machine_is_taken_in_each_interval() -> None:
    taken = list(islice(TRACE.losses(4, 20.0), 200))
    assert [int(at_s // 20) for at_s, _ in taken] == list(range(200))
    assert {place for _, place in taken} == {0, 1, 2, 3}


# What is promised -----------------------------------------------------------------------------------------------------


def outcome(arm: int, sampled: int, trained: int = 1000) -> Outcome:
    return Outcome(
        arm=preemption.arms(OPTIONS)[arm].name,
        groups=10,
        seconds=10.0,
        taken=1,
        sampled_tokens=sampled,
        trained_tokens=trained,
        wasted_share=1 - trained / sampled,
        groups_per_s=1.0,
        tokens_per_s=100.0,
        overdue=0,
        lapsed=0,
        identity=True,
        busy_share=0.5,
    )


KEPT = (outcome(0, 1200), outcome(1, 1040), outcome(2, 1000), outcome(3, 1000))


def targets(*outcomes: Outcome) -> list[bool]:
    return list(preemption.targets_of(preemption.figures_of(outcomes, OPTIONS), OPTIONS).values())


def test_promises_that_are_kept_are_said_to_be() -> None:
    assert targets(*KEPT) == [True] * 7


@pytest.mark.parametrize(
    ("number", "outcomes"),
    [
        (0, (KEPT[0], outcome(1, 1060), *KEPT[2:])),
        (1, (outcome(0, 1040), *KEPT[1:])),
        (2, (*KEPT[:2], outcome(2, 1001), KEPT[3])),
        (2, (*KEPT[:2], replace(KEPT[2], taken=0), KEPT[3])),
        (3, (*KEPT[:3], outcome(3, 1001))),
        (3, (*KEPT[:3], replace(KEPT[3], taken=0))),
        (4, (*KEPT[:2], replace(KEPT[2], overdue=1), KEPT[3])),
        (4, (*KEPT[:3], replace(KEPT[3], overdue=1))),
        (5, (KEPT[0], replace(KEPT[1], seconds=10.1), *KEPT[2:])),
        (6, (*KEPT[:3], replace(KEPT[3], identity=False))),
    ],
)
def test_a_promise_that_is_missed_is_said_to_be(number: int, outcomes: tuple[Outcome, ...]) -> None:
    assert targets(*outcomes) == [place != number for place in range(7)]


def test_rounds_are_added_up_before_shares_are_taken() -> None:
    figures: Figures = preemption.figures_of((*KEPT, outcome(1, 2200, trained=2000)), OPTIONS)
    assert figures.wasted_share["with migration"] == round(240 / 3240, 4)
    assert figures.tokens_ratio == 1.5


@pytest.mark.proof(kind="benchmarks", share=0.15)
def test_a_short_run_prints_its_verdict() -> None:
    """A notice loses nothing and the identity holds however few the kills are; shares need more kills than these."""
    few = ("--groups", "16", "--notice-groups", "16", "--workers", "2", "--every", "6", "--boot", "1", "--lease", "3")
    fast = ("--longest", "300", "--steps-per-s", "50", "--json")
    words = (sys.executable, "-m", "benchmarks.preemption", *few, *fast)
    done = subprocess.run(words, capture_output=True, text=True, timeout=ENDED_S, check=False)
    assert done.stdout, done.stderr
    verdict = orjson.loads(done.stdout.splitlines()[-1])
    assert verdict["targets"]["a notice of 25 s loses no token"], verdict
    assert verdict["targets"]["a dismissal by the controller loses no token"], verdict
    assert verdict["targets"]["who was told left in time"], verdict
    assert verdict["targets"]["the identity holds"], verdict
