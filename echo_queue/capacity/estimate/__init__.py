"""Reckons what a run will need and how stale its data will be, without starting or loading anything.

- An estimate is a pure function of the configuration, the model's `config.json`, and stated assumptions about machines
  and links. Nothing is downloaded, and torch is not imported.
- Each formula's docstring names its source; measured constants name the command that measured them.
"""

from echo_queue.capacity.estimate.refusals import refusals
from echo_queue.capacity.estimate.run_estimate import Assumptions, RunEstimate, estimate

__all__ = ["Assumptions", "RunEstimate", "estimate", "refusals"]
