"""The mini-batches of an update: disjoint parts of its groups, each of which gets an optimizer step of its own."""

from echo_queue.config import Learner
from learner.batch.prepare import Update, normalised, trained_tokens


def mini_batches(update: Update, settings: Learner) -> list[Update]:
    """Deals the groups of an update out to `settings.mini_batches` parts, whose sizes differ by one group at most.

    The groups lie in the order of their age and are dealt in turn, so every step sees the same mixture of lags. A part
    without tokens to train is left out: an update of few groups takes fewer steps. Each part is normalised by itself,
    and none counts groups without variance, which are the update's.
    """
    dealt = (update.groups[first :: settings.mini_batches] for first in range(settings.mini_batches))
    parts = (Update(groups, trained_tokens(groups), zero_variance_groups=0) for groups in dealt)
    return [normalised(part, settings) for part in parts if part.tokens]
