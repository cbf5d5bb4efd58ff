"""Brings published weights to an engine: fetches and checks them beside it, stages them, and swaps them in.

The worker's loop uses only `WeightSync`. Transports are in `transport`, `peers` and `folder`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.weights.sync import WeightSync

__all__ = ["WeightSync"]


def __getattr__(name: str) -> Any:
    """Imports `WeightSync` on first use: it comes with torch, which single modules of this package do without."""
    if name != "WeightSync":
        raise AttributeError(name)
    from workers.weights.sync import WeightSync

    return WeightSync
