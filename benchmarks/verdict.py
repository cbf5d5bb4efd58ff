"""The last line of every benchmark with `--json`: one object of figures, targets (promise → kept) and `ok`."""

from collections.abc import Mapping
from typing import Any

import orjson


def print_verdict(figures: Any, targets: Mapping[str, bool]) -> None:
    """`figures`: a dataclass, or a list or mapping of them."""
    verdict = {"figures": figures, "targets": targets, "ok": all(targets.values())}
    print(orjson.dumps(verdict).decode(), flush=True)
