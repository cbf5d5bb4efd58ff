"""The figures that an update reports about its tokens."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class TokenSums:
    """The figures that an update reports about its tokens, as sums over them. `tokens` counts those that were drawn."""

    TERMS: ClassVar[int] = 6
    """Number of sums beside `tokens`."""

    tokens: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    """Number of tokens whose gradient the correction cut off or reduced."""
    filtered: float = 0.0
    """Number of tokens of samples that a filter took out."""
    kl_behaviour: float = 0.0
    """Sum of behaviour minus learner log-probabilities."""
    kl_reference: float = 0.0
    entropy: float = 0.0

    def mean(self, total: float) -> float:
        """Returns the sum `total` per token; 0 for an update without tokens."""
        return total / self.tokens if self.tokens else 0.0
