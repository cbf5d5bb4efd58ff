"""The figures that an update reports about its tokens."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenSums:
    """The figures that an update reports about its tokens, as sums that add over micro-batches."""

    tokens: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    kl_behaviour: float = 0.0
    """Sum of behaviour minus learner log-probabilities."""
    kl_reference: float = 0.0
    entropy: float = 0.0

    def __add__(self, other: "TokenSums") -> "TokenSums":
        return TokenSums(
            self.tokens + other.tokens,
            self.loss + other.loss,
            self.clipped + other.clipped,
            self.kl_behaviour + other.kl_behaviour,
            self.kl_reference + other.kl_reference,
            self.entropy + other.entropy,
        )

    def mean(self, total: float) -> float:
        """Returns the sum `total` per token; 0 for an update without tokens."""
        return total / self.tokens if self.tokens else 0.0
