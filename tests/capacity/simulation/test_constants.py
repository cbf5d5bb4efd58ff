"""The simulation restates constants of rooms that it may not import, and of Lua: they are the same there."""

import re

import pytest

from echo_queue.capacity.simulation import learner, machine, memory_queue, moves
from echo_queue.queue import library
from tests.source_code import ROOT

SWEEPER = (ROOT / "learner" / "lease_sweeper.py").read_text(encoding="utf-8")
ROLLOUT_LOOP = (ROOT / "workers" / "rollout_loop.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("stated", "pattern", "source"),
    [
        (moves.SWEEPS_PER_LEASE, r"^SWEEPS_PER_LEASE = (\d+)", SWEEPER),
        (moves.LONGEST_PAUSE_S, r"^LONGEST_PAUSE_S = ([\d.]+)", SWEEPER),
        (machine.ROOM_SHARE, r"^ROOM_SHARE = (\d+)", ROLLOUT_LOOP),
        (memory_queue.ADMIT_MAX, r"^local ADMIT_MAX = (\d+)", library.source()),
        (memory_queue.DRAIN_MAX, r"^local DRAIN_MAX, RETURN_MAX, CANCEL_MAX = (\d+)", library.source()),
        (memory_queue.RETURN_MAX, r"^local DRAIN_MAX, RETURN_MAX, CANCEL_MAX = \d+, (\d+)", library.source()),
        (memory_queue.CANCEL_MAX, r"^local DRAIN_MAX, RETURN_MAX, CANCEL_MAX = \d+, \d+, (\d+)", library.source()),
        (memory_queue.HANDED_BACK_MS, r"^local HANDED_BACK, GIVEN_UP = (-\d+)", library.source()),
        (learner.FIRST_WINDOW, r"window = (\d+), uncommitted", library.source()),
    ],
)
def test_a_constant_is_that_of_the_real_part(stated: float, pattern: str, source: str) -> None:
    found = re.findall(pattern, source, re.MULTILINE)
    assert [float(one) for one in found] == [float(stated)]
