"""The figures of a simulation, for people and for scripts."""

from collections.abc import Mapping
from dataclasses import dataclass

from echo_queue.capacity.bounds.offers import HOUR_S
from echo_queue.capacity.simulation.moves import Counts
from echo_queue.capacity.simulation.scenario import Scenario
from echo_queue.capacity.simulation.tally import Cause, Tally


@dataclass(frozen=True)
class Figures:
    """The figures of the updates after the warm-up.

    `supply`: what all machines generate if none is idle or lost, divided by what a learner that never waits trains.
    `utilisation`: the share of its time for which the learner trains; `waits`: the shares for which it waits, by cause.
    Lags are in updates, of each group's oldest token. Shares of lost, stale and wasted work are of all that was
    generated. `usd_per_update` is None if no price is given.
    """

    s: int
    kappa: int
    t_bcast_s: float
    supply: float
    seconds: float
    updates: int
    groups: int
    utilisation: float
    waits: Mapping[str, float]
    mean_lag: float
    worst_lag: int
    sent_back: int
    """Groups, and tasks in flight, that became too old."""
    dead: int
    expired: int
    """Leases that ran out."""
    machines_lost: int
    busy_share: float
    """The share of the machines' time in which they generated."""
    lost_share: float
    stale_share: float
    usd_per_update: float | None

    @staticmethod
    def causes() -> tuple[str, ...]:
        """Returns the keys of `waits`."""
        return tuple(cause.value for cause in Cause)


def figures_of(
    scenario: Scenario, tally: Tally, end_s: float, supply: float, counted: tuple[Counts, Counts]
) -> Figures:
    """Returns the figures of an account that ended at `end_s`. `counted`: the queue's counts at its ends."""
    before, after = counted
    seconds, generated = end_s - tally.began_s, max(tally.generated, 1e-9)
    prices = [pool.usd_per_hour for pool in scenario.pools]
    usd = seconds * scenario.learner_usd_per_hour + sum(paid * prices[pool] for pool, paid in tally.paid_s.items())
    return Figures(
        s=scenario.rules.s,
        kappa=scenario.times.kappa,
        t_bcast_s=scenario.t_bcast_s,
        supply=supply,
        seconds=seconds,
        updates=tally.updates,
        groups=tally.groups,
        utilisation=tally.train_s / seconds,
        waits={cause.value: tally.waits_s[cause] / seconds for cause in Cause},
        mean_lag=tally.lags / tally.groups,
        worst_lag=tally.worst_lag,
        sent_back=after.late + after.cancelled - before.late - before.cancelled,
        dead=after.dead - before.dead,
        expired=after.expired - before.expired,
        machines_lost=tally.machines_lost,
        busy_share=tally.generated / tally.capacity,
        lost_share=tally.lost / generated,
        stale_share=tally.stale / generated,
        usd_per_update=usd / HOUR_S / tally.updates if scenario.learner_usd_per_hour or any(prices) else None,
    )
