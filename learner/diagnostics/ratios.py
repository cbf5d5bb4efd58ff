"""Figures of the ratios ρ = π / μ of an update's tokens: how much of the data still counts, and how far it is off."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

QUANTILES = (0.01, 0.5, 0.99)


class TokenRatios(NamedTuple):
    """The ratios of N tokens in R samples, whose tokens lie together and in order."""

    log_ratios: Floats
    """[N] log ρ"""
    lags: Counts
    """[N]"""
    lengths: Counts
    """[R] tokens of each sample"""


@dataclass(frozen=True)
class RatioFigures:
    """Figures of an update, each token as it was before the step that trained it.

    Effective sample sizes are shares, in (0, 1]: 1 on fresh data.
    """

    ess_tokens: float = 1.0
    """(Σρ)² / (N Σρ²) of the N tokens (Kong 1992)."""
    ess_samples: float = 1.0
    """The same of samples, whose weights are the products of their tokens' ratios (VCPO, arXiv 2602.17616)."""
    second_moment: float = 0.0
    """Mean of (log ρ)²."""
    by_lag: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """The `QUANTILES` of ρ for each lag of tokens, in ascending order of the lag."""


def ratio_figures(parts: Sequence[TokenRatios]) -> RatioFigures:
    """Computes the figures of all tokens of these parts, which are one or more; no sample lies in two of them."""
    log_ratios, lags, lengths = (np.concatenate(found) for found in zip(*parts, strict=True))
    quantiles = tuple(
        (int(lag), tuple(np.exp(np.quantile(log_ratios[lags == lag], QUANTILES)).tolist())) for lag in np.unique(lags)
    )
    filled = lengths[lengths > 0]
    products = np.add.reduceat(log_ratios, np.cumsum(filled) - filled)
    return RatioFigures(
        effective_share(log_ratios), effective_share(products), float(np.square(log_ratios).mean()), quantiles
    )


def effective_share(log_weights: Floats) -> float:
    """Returns (Σw)² / (n Σw²) of n weights by their logarithms, of any size: 1 if all are equal, 1/n if one is all."""
    weights = np.exp(log_weights - log_weights.max())
    return float(math.fsum(weights) ** 2 / (len(weights) * math.fsum(np.square(weights))))
