"""The tiers of tests: `make test-fast`, `make test`, `make proof`, and what CI draws from the last.

- `slow` is left out of `make test-fast`: it takes most of a second of CPU time, or shows on a second server what was
  shown on the first.
- `proof` is left out of `make test`: it is exhaustive, or shows again by a second way what another test promises.
- `make proof` runs all of these. CI draws: with `ECHO_QUEUE_PROOF=drawn` the session's seed chooses, among all tests of
  one kind, the share that their mark names. What a single test does at length it does in full only where `whole()`.
"""

import math
import os
import random
from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import TypeVar

import pytest

from tests.seed import session_seed

T = TypeVar("T")
VARIABLE = "ECHO_QUEUE_PROOF"
SECOND_SERVERS = {
    "redis": (
        "tests/queue/",
        "tests/connections/",
        "tests/launch/servers/",
        "tests/fleet/invitation/",
        "tests/faults/servers/",
    ),
    "swift": ("tests/connections/storage/test_object_store.py",),
}
"""What `make test` shows on these servers, too: what they must do themselves. All else it shows on Valkey and rclone,
which a run brings along."""
LONG = ("tests/pipeline/", "tests/faults/crash_points/", "tests/workers/", "tests/learner/")
"""Folders with the longest of the slow tests. They come first, so that none of them is all that is left in the end."""


def whole() -> bool:
    """Returns whether a test of `make proof` is to do everything that it can, and not just what CI has time for."""
    return os.environ.get(VARIABLE) == "whole"


def few(choices: Sequence[T], count: int, what: str) -> list[T]:
    """All of them where `whole()`, else some that the session's seed draws."""
    draw = random.Random(f"{session_seed()} {what}")
    return list(choices) if whole() else draw.sample(choices, min(len(choices), count))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Marks the tests before pytest looks at `-m`, and orders those that it leaves."""
    for item in items:
        _mark_second_servers(item)
    if os.environ.get(VARIABLE) == "drawn":
        drawn = _drawn(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
        items[:] = [item for item in items if item in drawn]
    others = yield
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = longest_first(items, [_long(item) for item in items], processes)
    return others


def longest_first(items: Sequence[T], long: Sequence[int | None], processes: int) -> list[T]:
    """Orders the tests of several processes such that each begins with those of some of the folders `LONG`.

    pytest-xdist gives each process an equal share of the list, one after the other, and who is through takes over from
    the end of another's share. `long`: the number of each test's folder; None for a test that is short.
    """
    if processes == 1:
        return list(items)
    short = [item for item, folder in zip(items, long, strict=True) if folder is None]
    ordered: list[T] = []
    for process in range(processes):
        share = (len(items) - len(ordered)) // (processes - process)
        first = [
            item
            for item, folder in zip(items, long, strict=True)
            if folder is not None and folder % processes == process
        ]
        more = max(0, share - len(first))
        ordered += first + short[:more]
        short = short[more:]
    return ordered + short


def _long(item: pytest.Item) -> int | None:
    if not any(item.get_closest_marker(mark) for mark in ("slow", "proof")):
        return None
    return next((number for number, folder in enumerate(LONG) if item.nodeid.startswith(folder)), None)


def _mark_second_servers(item: pytest.Item) -> None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    used = {value for value in params.values() if isinstance(value, str)}
    for server, places in SECOND_SERVERS.items():  # in one order, so that all processes of a session draw the same
        if server not in used:
            continue
        item.add_marker(pytest.mark.slow)
        if not item.nodeid.startswith(places):
            item.add_marker(pytest.mark.proof(kind=server, share=0.25))


def _drawn(items: list[pytest.Item]) -> set[pytest.Item]:
    """Returns the tests that are no proof, and of each kind of proof as many as its share."""
    kinds, drawn = defaultdict[str, list[pytest.Item]](list), set[pytest.Item]()
    shares: dict[str, float] = {}
    for item in items:
        mark = item.get_closest_marker("proof")
        if mark is None:
            drawn.add(item)
            continue
        kind = mark.kwargs.get("kind", item.nodeid)
        kinds[kind].append(item)
        shares[kind] = mark.kwargs.get("share", 1.0)
    for kind, those in kinds.items():
        draw = random.Random(f"{session_seed()} {kind}")
        drawn |= set(draw.sample(those, math.ceil(shares[kind] * len(those))))
    return drawn
