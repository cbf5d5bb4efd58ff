"""What of a model `torch.compile` compiles: nothing, the elementwise parts of its layers, or whole layers.

- It changes nothing but rounding, and works with activation checkpointing, adapters and FSDP.
- Elementwise parts are compiled once for each kind of call, when it first comes: with a gradient in the first update,
  without one when an older version is first scored. Layers may be compiled again for other lengths.
"""

from typing import Literal

import torch
from torch import Tensor

from echo_queue.errors import ConfigError, Problem
from learner.model.elementwise import compile_elementwise
from learner.model.scorer import Scorer

WITHOUT = 'write "none", which needs no compiler'


def compile_model(scorer: Scorer, what: Literal["none", "elementwise", "layers"], device: torch.device) -> None:
    """Makes `what` of the scorer compile itself when it is first called.

    Raises `ConfigError` if torch cannot compile for `device`, or knows no elementwise part in this model.
    """
    if what == "none":
        return
    _check_compiler(what, device)
    if what == "layers":
        for layer in scorer.layers:
            layer.compile()
    elif not compile_elementwise(scorer.model):
        name = type(scorer.model).__name__
        raise _refused(what, f"{name} has no elementwise part that is known", 'write "none" or "layers"')


def _check_compiler(what: str, device: torch.device) -> None:
    """Raises `ConfigError` if there is no compiler: C++ for a CPU, Triton for a GPU."""
    try:
        torch.compile(_doubled)(torch.ones(2, device=device))
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise _refused(what, f"torch cannot compile for {device.type}: {reason}", WITHOUT) from None


def _doubled(numbers: Tensor) -> Tensor:
    return numbers * 2


def _refused(what: str, why: str, fix: str) -> ConfigError:
    return ConfigError(Problem("learner.compile", f'is "{what}", but {why}', fix))
