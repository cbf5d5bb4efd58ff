"""The last line of every benchmark with `--json`: one object of figures, targets (promise → kept) and `ok`."""

from collections.abc import Mapping
from typing import Any

import orjson


def conclude(figures: Any, targets: Mapping[str, bool], *, as_json: bool) -> int:
    """Prints a line for each promise, and the verdict if asked for; returns the exit code."""
    for promise, kept in targets.items():
        print(f"{'ok  ' if kept else 'FAIL'} {promise}")
    if as_json:
        print_verdict(figures, targets)
    return 0 if all(targets.values()) else 1


def print_verdict(figures: Any, targets: Mapping[str, bool]) -> None:
    """Prints the verdict. `figures`: a dataclass, or a list or mapping of them."""
    verdict = {"figures": figures, "targets": targets, "ok": all(targets.values())}
    print(orjson.dumps(verdict).decode(), flush=True)
