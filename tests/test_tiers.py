"""The choice of tests is the same in every process of a session, and comes back with its seed."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests import seed, tiers

ROOT = Path(__file__).parents[1]
MUTATIONS, PROXY = "tests/faults/mutations/test_mutations.py", "tests/faults/proxy/test_proxy.py"
BOTH = "tests/weights/test_racing.py"
"""Has a test that uses both second servers, so that it could be drawn with either."""
HASHES = "1", "6"
"""Seeds of Python's hashes with which sets have the two servers in either order."""
PROOFS = f"{MUTATIONS}::test_a_broken_rule_is_noticed["


@cache
def collected(number: str = "", hashes: str = HASHES[0]) -> tuple[str, ...]:
    """Returns the tests of three files that a session of its own runs, in order: all, or what a seed draws."""
    drawn = {tiers.VARIABLE: "drawn" if number else "", seed.VARIABLE: number or "0", "PYTHONHASHSEED": hashes}
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""} | drawn
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", MUTATIONS, PROXY, BOTH]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=True)
    return tuple(line for line in done.stdout.splitlines() if "::" in line)


@pytest.mark.slow
def test_a_seed_draws_the_same_share_in_every_process_whatever_order_sets_have() -> None:
    assert collected("1", HASHES[0]) == collected("1", HASHES[1])
    drawn = [[test for test in collected(number) if test.startswith(PROOFS)] for number in ("1", "2", "")]
    assert drawn[0] != drawn[1] and {*drawn[0], *drawn[1]} < {*drawn[2]}
    assert len(drawn[0]) == len(drawn[1]) == -(-len(drawn[2]) // 20)


@pytest.mark.slow
def test_what_is_no_proof_is_never_left_out_by_a_draw() -> None:
    left_out = {*collected()} - {*collected("1")}
    assert all(test.startswith(PROOFS) or "[redis" in test or "[swift" in test for test in left_out)


def test_few_are_all_where_the_whole_proof_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tiers.VARIABLE, "whole")
    assert tiers.few(range(9), 3, "numbers") == list(range(9))
    monkeypatch.setenv(tiers.VARIABLE, "drawn")
    monkeypatch.setenv(seed.VARIABLE, "7")
    assert len(tiers.few(range(9), 3, "numbers")) == 3
    assert tiers.few(range(9), 3, "numbers") == tiers.few(range(9), 3, "numbers")
    assert tiers.few(range(2), 3, "numbers") in ([0, 1], [1, 0])


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 5])
def test_every_process_begins_with_the_long_tests_of_some_folders(processes: int) -> None:
    long = [number // 3 if number < 12 else None for number in range(40)]
    ordered = tiers.longest_first(range(40), long, processes)
    assert sorted(ordered) == list(range(40))
    rest = ordered
    for process in range(processes):
        share = rest[: len(rest) // (processes - process)]
        rest = rest[len(share) :]
        own = [number for number in range(12) if long[number] % processes == process]
        assert share[: len(own)] == own
    assert tiers.longest_first([1, 2, 3], [0, 0, 0], 4) == [1, 2, 3]


def test_a_session_has_one_seed_and_its_children_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(seed.VARIABLE)
    drawn = seed.session_seed()
    assert drawn == seed.session_seed() == int(os.environ[seed.VARIABLE])
