"""The tiers of tests: `make test-fast`, `make test`, `make proof`, and what CI draws from the last.

- `slow` is left out of `make test-fast`: it takes seconds, or shows on a second server what was shown on the first.
- `proof` is left out of `make test`: it is exhaustive, or shows again by a second way what another test promises.
- `make proof` runs all of these. CI draws: with `ECHO_QUEUE_PROOF=drawn` the session's seed chooses, among all tests of
  one kind, the share that their mark names. What a single test does at length it does in full only where `whole()`.
"""

import math
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

from tests.seed import session_seed

T = TypeVar("T")
VARIABLE = "ECHO_QUEUE_PROOF"
SECOND_SERVERS = {"redis", "swift"}
"""Shown on Valkey and rclone, which a run brings along, in seconds; on these in a minute."""
STORES = "tests/storage/test_object_store.py"
"""The tests of promises that one store keeps and the other does not; they run on both."""


def whole() -> bool:
    """Returns whether a test of `make proof` is to do everything that it can, and not just what CI has time for."""
    return os.environ.get(VARIABLE) == "whole"


def few(choices: Sequence[T], count: int, what: str) -> list[T]:
    """All of them where `whole()`, else some that the session's seed draws."""
    draw = random.Random(f"{session_seed()} {what}")
    return list(choices) if whole() else draw.sample(choices, min(len(choices), count))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests before pytest looks at `-m`."""
    for item in items:
        _mark_second_servers(item)
    if os.environ.get(VARIABLE) == "drawn":
        drawn = _drawn(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
        items[:] = [item for item in items if item in drawn]


def _mark_second_servers(item: pytest.Item) -> None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    second = {value for value in params.values() if isinstance(value, str)} & SECOND_SERVERS
    if second:
        item.add_marker(pytest.mark.slow)
    if "swift" in second and not item.nodeid.startswith(STORES):
        item.add_marker(pytest.mark.proof(kind="swift", share=0.25))


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
