"""An update: the passes of the ranks over its samples, the old log-probabilities, and the optimizer's steps."""

from learner.update.steps import UpdateResult, learn, learning_rate

__all__ = ["UpdateResult", "learn", "learning_rate"]
