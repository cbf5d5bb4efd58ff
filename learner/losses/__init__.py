"""Losses as pure functions over flat token vectors [K], where K counts the tokens that the model drew.

- Every term is returned per token and unreduced. `learner.update` divides by the tokens of the whole update, so the
  gradient does not depend on how the update was cut into micro-batches.
- The ratio is taken against the behaviour log-probabilities, whatever their age: that is the correction for lag.

How to add a loss: write its function in a module of its own here (`clipped.py` is an example, papers named), add its
coefficients to `config.Learner`, and add its term in `objective.py`, the only place where terms are put together. A
figure to report per update gets a field in `TokenSums` and in `UpdateMetrics`. Another kind of advantage goes into
`advantages.py`.
"""
