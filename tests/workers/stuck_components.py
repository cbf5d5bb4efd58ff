"""Rewards of components that are broken, for the tests of a mixture."""

import time
from typing import Any


def hangs(completions: list[str], **columns: Any) -> list[float]:
    time.sleep(3600)
    return [0.0 for _ in completions]


def raises(completions: list[str], **columns: Any) -> list[float]:
    raise RuntimeError("no such luck")
