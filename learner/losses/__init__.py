"""Losses as pure functions over flat token vectors [K], where K counts the tokens that the model drew.

- Every term is returned per token and unreduced. `learner.update` divides by the tokens of the whole mini-batch, so the
  gradient does not depend on how the update was cut into micro-batches.
- What concerns a whole sample is found in its micro-batch, which holds it whole. What concerns the mini-batch is
  found by a pass of its own (`learner.update.passes`) and given to the loss as a number.

`corrections.py` has what can be done about stale data, `objective.py` is the only place where terms are put together.
docs/learning.md has the equations, and CONTRIBUTING.md says where another term goes.
"""
