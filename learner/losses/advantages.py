"""Advantages of one prompt's samples, relative to their group."""

from typing import Literal

from torch import Tensor

STD_FLOOR = 1e-4


def group_advantages(rewards: Tensor, kind: Literal["std", "mean"]) -> Tensor:
    """Turns the rewards [G] of one prompt's samples into advantages [G].

    "std": (r − mean) / (std + 1e-4) with the sample deviation (GRPO, Shao et al. 2024, as TRL computes it);
    "mean": r − mean (Dr. GRPO, Liu et al. 2025).
    """
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + STD_FLOOR) if kind == "std" else centred
