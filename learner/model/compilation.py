"""What of a model `torch.compile` compiles: nothing, the elementwise parts of its layers, or whole layers.

- It changes nothing but rounding, and works with activation checkpointing, adapters and FSDP.
- It is compiled once for each kind of call, whatever the lengths, when that first comes: with a gradient in the first
  update, without one when an older version is first scored. With the attention of padded rectangles, of which there may
  be one or several, layers are compiled a few times more.
"""

import logging

import torch
from torch import Tensor

from echo_queue import config
from echo_queue.errors import ConfigError, Problem
from learner.model.elementwise import compile_elementwise
from learner.model.scorer import Scorer

FIX = 'write "auto", which compiles what it can on a GPU and nothing on a CPU'
LONGER = {"elementwise": "seconds", "layers": "minutes"}

log = logging.getLogger(__name__)


def compile_model(scorer: Scorer, settings: config.Learner, device: torch.device) -> None:
    """Makes what `settings.compile` names compile itself when it is first called.

    "auto" never fails: where a GPU could run compiled code and something is in the way, a warning says what. Any other
    choice then raises `ConfigError`.
    """
    what = _automatic(settings, device) if settings.compile == "auto" else settings.compile
    if what == "none":
        return
    obstacle = _compiler_obstacle(device) or _compile(scorer, what)
    if not obstacle:
        log.info('compiles "%s" on first use: the first update takes %s longer', what, LONGER[what])
    elif settings.compile == "auto":
        log.warning("nothing is compiled, so updates take longer: %s", obstacle)
    else:
        raise ConfigError(Problem("learner.compile", f'is "{what}", but {obstacle}', FIX))


def _automatic(settings: config.Learner, device: torch.device) -> str:
    """Returns what "auto" stands for.

    On a GPU the order in which compiled code adds numbers up may depend on the lengths that it was first called with.
    After a restart these are others, so that `settings.deterministic` forbids it.
    """
    return "elementwise" if device.type == "cuda" and not settings.deterministic else "none"


def _compiler_obstacle(device: torch.device) -> str:
    """Returns why torch cannot compile for this device, which takes C++ for a CPU, Triton and C for a GPU; "" if it
    can."""
    try:
        torch.compile(_doubled)(torch.ones(2, device=device))
    except Exception as error:  # whatever the compilers and the loaders of what they make may raise
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        return f"torch cannot compile for {device.type}: {reason}"
    return ""


def _compile(scorer: Scorer, what: str) -> str:
    """Returns why there is nothing to compile; "" if there is."""
    if what == "layers":
        for layer in scorer.layers:
            layer.compile(dynamic=True)
    elif not compile_elementwise(scorer.model):
        return f"{type(scorer.model).__name__} has no elementwise part that is known"
    return ""


def _doubled(numbers: Tensor) -> Tensor:
    return numbers * 2
