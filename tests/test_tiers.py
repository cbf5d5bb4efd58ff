"""The choice of tests is the same in every process of a session, and comes back with its seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import seed, tiers

ROOT = Path(__file__).parents[1]
MUTATIONS = "tests/faults/mutations/test_mutations.py"


def collected(*words: str, **environment: str) -> list[str]:
    """Returns the tests that a session of its own collects."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""} | environment
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *words]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_a_seed_draws_the_same_share_in_every_process() -> None:
    drawn = [
        collected(
            "-m", "proof", MUTATIONS, ECHO_QUEUE_PROOF="drawn", ECHO_QUEUE_TEST_SEED=number, PYTHONHASHSEED=hashes
        )
        for number, hashes in (("1", "1"), ("1", "2"), ("2", "1"))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    every = collected("-m", "proof", MUTATIONS)
    assert {*drawn[0], *drawn[2]} < {*every}
    assert len(drawn[0]) == len(drawn[2]) == -(-len(every) // 20)


@pytest.mark.slow
def test_what_is_no_proof_is_never_left_out_by_a_draw() -> None:
    assert collected("-m", "not proof", MUTATIONS, ECHO_QUEUE_PROOF="drawn") == collected("-m", "not proof", MUTATIONS)


@pytest.mark.slow
def test_the_same_tests_are_collected_whatever_order_sets_have() -> None:
    file = "tests/faults/proxy/test_proxy.py"
    assert collected(file, PYTHONHASHSEED="1") == collected(file, PYTHONHASHSEED="2")


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
