"""What a loss may look at."""

from typing import NamedTuple

from torch import Tensor


class LossInputs(NamedTuple):
    """The K tokens of a micro-batch that the model drew, those of each of its R samples in order and together."""

    logprobs: Tensor
    """[K] the learner's log-probabilities, with gradient"""
    behaviour: Tensor
    """[K] log-probabilities of the policy that drew the tokens"""
    advantages: Tensor
    """[K]"""
    lags: Tensor
    """[K] updates between the version that drew each token and the one that is trained"""
    lengths: Tensor
    """[R] tokens of each sample; their sum is K"""
    reference: Tensor | None = None
    """[K] the reference model's log-probabilities, if the run has one"""
    proximal: Tensor | None = None
    """[K] log-probabilities of the policy between behaviour and learner, where passes found them: the one at the
    update's beginning, or the version that drew each token"""
