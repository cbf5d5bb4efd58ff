"""The queue in memory states constants of Lua a second time: they are the same there."""

import re

import pytest

from echo_queue.capacity.simulation import memory_queue
from echo_queue.queue import library


@pytest.mark.parametrize(
    ("stated", "pattern"),
    [
        (memory_queue.ADMIT_MAX, r"^local ADMIT_MAX = (\d+)"),
        (memory_queue.DRAIN_MAX, r"^local DRAIN_MAX, RETURN_MAX, CANCEL_MAX = (\d+)"),
        (memory_queue.RETURN_MAX, r"^local DRAIN_MAX, RETURN_MAX, CANCEL_MAX = \d+, (\d+)"),
        (memory_queue.CANCEL_MAX, r"^local DRAIN_MAX, RETURN_MAX, CANCEL_MAX = \d+, \d+, (\d+)"),
        (memory_queue.HANDED_BACK_MS, r"^local HANDED_BACK, GIVEN_UP = (-\d+)"),
        (memory_queue.FIRST_WINDOW, r"window = (\d+), uncommitted"),
    ],
)
def test_a_constant_is_that_of_lua(stated: float, pattern: str) -> None:
    found = re.findall(pattern, library.source(), re.MULTILINE)
    assert [float(one) for one in found] == [float(stated)]
