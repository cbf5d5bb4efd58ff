"""Losses as pure functions over flat token vectors: K is the number of tokens that the model drew.

- Every term comes back per token and unreduced. The caller divides by the tokens of the whole update, so the gradient
  does not depend on how the update was cut into micro-batches.
- The ratio is against the behaviour log-probabilities, whatever their age: that is the correction for lag.
- A new loss is a new module here, and one more branch where `learner.update` sums the terms.
"""
