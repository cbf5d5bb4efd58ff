"""The report's pictures, as inline SVG that follows the page's light and dark colours.

Each function takes the run's updates, its evaluations, or what was counted of them, and returns one `<svg>` element.
"""

from echo_queue.reporting.plots.by_bound import cost_by_bound, lag_histogram
from echo_queue.reporting.plots.over_time import (
    busy_shares,
    depths,
    ever_read,
    in_flight,
    learner_time,
    places,
    restarts_s,
    reward,
    speed,
    weights_read,
    weights_s,
    workers,
)
from echo_queue.reporting.plots.over_versions import (
    component_lengths,
    component_rewards,
    component_shares,
    entropy,
    grad_norm,
    held_out,
    key,
    kl,
    learning_rate,
    lengths,
    loss,
    off_policy,
    reward_spread,
    rewards,
    share,
)
from echo_queue.reporting.plots.picture import MOST_POINTS, standalone

__all__ = [
    "MOST_POINTS",
    "busy_shares",
    "component_lengths",
    "component_rewards",
    "component_shares",
    "cost_by_bound",
    "depths",
    "entropy",
    "ever_read",
    "grad_norm",
    "held_out",
    "in_flight",
    "key",
    "kl",
    "lag_histogram",
    "learner_time",
    "learning_rate",
    "lengths",
    "loss",
    "off_policy",
    "places",
    "restarts_s",
    "reward",
    "reward_spread",
    "rewards",
    "share",
    "speed",
    "standalone",
    "weights_read",
    "weights_s",
    "workers",
]
