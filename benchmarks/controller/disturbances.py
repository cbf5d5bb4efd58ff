"""The things that happen to a fleet that serves. Each function makes one of them happen to a trial."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.controller.offers import CHEAPEST
from benchmarks.controller.trial import Trial


def doubled_demand(trial: Trial) -> None:
    """The learner needs half the time for an update."""
    trial.learner.pace = replace(trial.learner.pace, train_s=trial.learner.pace.train_s / 2)


def cheapest_pool_gone(trial: Trial) -> None:
    """All machines of the cheapest pool are killed, and it refuses to start others."""
    trial.market.withdraw(CHEAPEST)


def price_spike(trial: Trial) -> None:
    """The cheapest pool's price is four times as high."""
    trial.market.usd[CHEAPEST] *= 4


def lying_worker(trial: Trial) -> None:
    """A machine's worker makes nothing any more, and claims to be ten times as fast as it was."""
    trial.lie(trial.serving()[0])


KINDS: Mapping[str, Callable[[Trial], None]] = {
    "doubled demand": doubled_demand,
    "the cheapest pool gone": cheapest_pool_gone,
    "a price spike": price_spike,
    "a lying worker": lying_worker,
}
