"""How published weights reach an engine: fetched and checked beside it, staged, and swapped in between steps.

`WeightSync` is all that the worker's loop knows of it. Transports are in `transport`, `peers` and `folder`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.weights.sync import WeightSync

__all__ = ["WeightSync"]


def __getattr__(name: str) -> Any:
    """`WeightSync` comes with torch, which single modules of this package do without."""
    if name != "WeightSync":
        raise AttributeError(name)
    from workers.weights.sync import WeightSync

    return WeightSync
