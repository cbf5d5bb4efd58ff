"""Advantages of one prompt's samples, relative to their group, and the rewards that they are made of."""

from typing import Literal

import torch
from torch import Tensor

STD_FLOOR = 1e-4


def group_advantages(rewards: Tensor, kind: Literal["std", "mean", "max"]) -> Tensor:
    """Turns the rewards [G] of one prompt's samples into advantages [G].

    "std": (r − mean) / (std + 1e-4) with the sample deviation (GRPO, Shao et al. 2024, as TRL computes it);
    "mean": r − mean (Dr. GRPO, Liu et al. 2025), which is RLOO's times the constant (G − 1) / G;
    "max": (r − mean) / mean for rewards that are never negative (MaxRL, arXiv 2602.02710).
    """
    mean = rewards.mean()
    centred = rewards - mean
    if kind == "std":
        return centred / (rewards.std() + STD_FLOOR)
    return centred / mean.clamp(min=torch.finfo(mean.dtype).tiny) if kind == "max" else centred


def length_penalty(lengths: Tensor, begin: int, end: int) -> Tensor:
    """Returns what samples of these lengths [G] lose of their reward: 0 up to `begin` tokens, 1 from `end` on.

    −min(1, max(0, (T − begin) / (end − begin))), DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13).
    """
    return -((lengths - begin) / (end - begin)).clamp(0.0, 1.0)
