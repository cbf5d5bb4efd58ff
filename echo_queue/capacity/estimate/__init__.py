"""Reckons what a run will need and how stale its data will be, without starting or loading anything.

- An estimate is a pure function of the configuration, the model's `config.json`, and stated assumptions about machines
  and links. Nothing is downloaded, and torch is not imported.
- Each formula's docstring names its source; measured constants name the command that measured them.
"""

from echo_queue.capacity.estimate.model_config import model_shape
from echo_queue.capacity.estimate.model_refusals import model_refusals
from echo_queue.capacity.estimate.model_shape import ModelShape, shape_of
from echo_queue.capacity.estimate.refusals import refusals
from echo_queue.capacity.estimate.run_estimate import Assumptions, RunEstimate, estimate

__all__ = [
    "Assumptions",
    "ModelShape",
    "RunEstimate",
    "estimate",
    "model_refusals",
    "model_shape",
    "refusals",
    "shape_of",
]
