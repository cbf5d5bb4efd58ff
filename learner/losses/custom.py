"""A loss of the user's own, which `learner.loss` names."""

from collections.abc import Callable
from functools import cache
from importlib import import_module

from torch import Tensor

from echo_queue.errors import ConfigError, Problem
from learner.losses.inputs import LossInputs

CustomLoss = Callable[[LossInputs], Tensor]
"""Returns the loss to minimise per token, [K]: the learner adds it up, and divides by the tokens of the update."""
WHERE = "learner.loss"


@cache
def custom_loss(name: str) -> CustomLoss:
    """Imports the function `module:function`. Raises `ConfigError` if there is none on this machine."""
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        fix = "start the learner where the module can be imported, or set PYTHONPATH"
        raise ConfigError(Problem(WHERE, f"{name}: {error}", fix)) from None
    except AttributeError:
        raise ConfigError(Problem(WHERE, f"{module} has no {function}", 'write "module:function"')) from None
    if not callable(found):
        what = f"{name} is of type {type(found).__name__}, not a function"
        raise ConfigError(Problem(WHERE, what, "name a function"))
    loss: CustomLoss = found
    return loss
