"""What each method of selection changes in a small run's configuration (docs/selection.md)."""

from collections.abc import Mapping
from typing import Any

METHODS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "oldest first": {},
    "refill": {"selection": {"refill": True}},
    "Shuffle-R1": {"selection": {"pairs_kept": 0.5, "shuffle_rounds": 2}},
    "reuse": {"selection": {"reuse_groups": 2}},
    "MoPPS": {"selection": {"curriculum": "mopps", "curriculum_window": 8}},
    "DoPR": {"selection": {"curriculum": "dopr", "curriculum_window": 8}, "learner": {"batch_groups": 1}},
}
IN_ORDER = tuple(name for name, changes in METHODS.items() if "curriculum" not in changes.get("selection", {}))
"""The methods that admit prompts in their order."""
