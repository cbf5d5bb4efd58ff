"""A loss of the user's own, which `learner.loss` names."""

from collections.abc import Callable
from functools import cache

from torch import Tensor

from echo_queue.config.named_function import named_function
from learner.losses.inputs import LossInputs

CustomLoss = Callable[[LossInputs], Tensor]
"""Returns the loss to minimise per token, [K]: the learner adds it up, and divides by the tokens of the update."""


@cache
def custom_loss(name: str) -> CustomLoss:
    """Imports the function `module:function`. Raises `ConfigError` if there is none on this machine."""
    return named_function(name, "learner.loss", "learner")
