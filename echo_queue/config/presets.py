"""The papers' corrections for stale data, as values of `[learner.correction]`."""

from collections.abc import Mapping
from typing import Any, Literal

Preset = Literal["dapo", "ppo", "tis", "cispo", "icepop", "gspo", "dppo", "decoupled-ppo", "ppo-tis", "m2po"]
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "dapo": {"use": "clip", "clip_low": 0.2, "clip_high": 0.28},  # arXiv 2503.14476
    "ppo": {"use": "clip", "clip_low": 0.2, "clip_high": 0.2},  # arXiv 1707.06347
    "tis": {"use": "truncate", "cap": 2.0},  # fengyao.notion.site/off-policy-rl, and arXiv 2505.24034 (AIPO)
    "cispo": {"use": "truncate", "cap": 5.0},  # arXiv 2506.13585, with the cap of ScaleRL, arXiv 2510.13786
    "icepop": {"use": "mask", "mask_low": 0.5, "mask_high": 5.0},  # arXiv 2510.18855
    "gspo": {"level": "sequence", "use": "clip", "clip_low": 3e-4, "clip_high": 4e-4},  # arXiv 2507.18071
    "dppo": {"use": "dppo", "delta": 0.2, "drift": 1e-3},  # arXiv 2602.04879
    "decoupled-ppo": {"use": "clip", "clip_low": 0.2, "clip_high": 0.2, "anchor": "proximal", "cap": 5.0},  # 2505.24298
    "ppo-tis": {"use": "clip", "clip_low": 0.2, "clip_high": 0.2, "anchor": "old", "cap": 2.0},  # fengyao.notion.site
    "m2po": {"use": "m2po", "budget": 0.04},  # arXiv 2510.01161
}
