"""The spot prices of now, and what a machine of an Auto Scaling group costs by them.

- AWS chooses type and zone of each instance that it starts. So a group's price is that of the dearest of them, and
  machines never cost more than was reckoned, wherever they come up.
- A price that was set more than `OLD_S` ago is none: nobody sells that type there any more.
- Prices are read once in `EVERY_S`. If they cannot be read, those that were read last count for `KEPT_S`.
- A group without a price has a reason in plain words, and the fleet file's price counts.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from echo_queue.fleet.drivers.protocol import DriverError, Quote
from echo_queue.queue.counts import duration

EVERY_S, KEPT_S, OLD_S = 300.0, 3_600.0, 7 * 86_400.0


class SpotPrice(NamedTuple):
    """A price in USD per hour, as it was set at `set_s`, by the clock that counts seconds since 1970."""

    instance_type: str
    zone: str
    usd_per_hour: float
    set_s: float


@dataclass(frozen=True)
class Market:
    """A group's prices, as they were read at `read_s`, or the reason for which there are none."""

    prices: tuple[SpotPrice, ...] = ()
    why_none: str = ""
    read_s: float = 0.0
    tried_s: float = float("-inf")
    failed: str = ""
    """The error of the last try; empty if it succeeded."""


class SpotPrices:
    """The prices of groups, by pool. `read` returns a market of now; it raises `DriverError`.

    `now` returns seconds since 1970.
    """

    def __init__(self, read: Callable[[str], Market], now: Callable[[], float] = time.time) -> None:
        self._read = read
        self._now = now
        self._markets: dict[str, Market] = {}

    def of(self, pool: str) -> Quote:
        """Returns what a machine of the pool costs now."""
        known, now_s = self._markets.get(pool, Market()), self._now()
        if now_s - known.tried_s >= EVERY_S:
            self._markets[pool] = known = self._anew(pool, known, now_s)
        return price_of(known, now_s)

    def _anew(self, pool: str, known: Market, now_s: float) -> Market:
        try:
            return replace(self._read(pool), read_s=now_s, tried_s=now_s)
        except DriverError as error:
            return replace(known, tried_s=now_s, failed=error.problems[0].what)


def market_of(group: Any, history: Iterable[Any]) -> Market:
    """Returns the market of a group, as AWS describes both. Of several prices of a type in a zone the latest counts."""
    types, zones = spot_types(group), group["AvailabilityZones"]
    if not types:
        return Market(why_none="its group is not of spot machines alone, with their types in its own list")
    latest: dict[tuple[str, str], SpotPrice] = {}
    for one in history:
        found = SpotPrice(
            one["InstanceType"], one["AvailabilityZone"], float(one["SpotPrice"]), one["Timestamp"].timestamp()
        )
        key = found.instance_type, found.zone
        if key[0] in types and key[1] in zones:
            latest[key] = max(found, latest.get(key, found), key=lambda price: price.set_s)
    if not latest:
        return Market(why_none=f"AWS states no spot price for {_listed(types)} in {_listed(zones)}")
    return Market(tuple(latest.values()))


def spot_types(group: Any) -> Sequence[str]:
    """Returns the instance types of a group that is of spot machines alone; none for any other."""
    policy = group.get("MixedInstancesPolicy", {})
    shares = policy.get("InstancesDistribution", {})
    on_demand = shares.get("OnDemandBaseCapacity", 0) or shares.get("OnDemandPercentageAboveBaseCapacity", 100)
    overrides = policy.get("LaunchTemplate", {}).get("Overrides", ())
    return () if on_demand else tuple(one["InstanceType"] for one in overrides if "InstanceType" in one)


def price_of(market: Market, now_s: float) -> Quote:
    """Returns the price that counts at `now_s`, with its age; or none, with the reason."""
    if market.failed and now_s - market.read_s > KEPT_S:
        return Quote(said=f"its spot price cannot be read: {market.failed}")
    if market.why_none:
        return Quote(said=market.why_none)
    fresh = [one for one in market.prices if now_s - one.set_s <= OLD_S]
    if not fresh:
        age_s = now_s - max(one.set_s for one in market.prices)
        return Quote(said=f"its spot price was set {duration(age_s)} ago, which is too old")
    dearest = max(fresh, key=lambda one: one.usd_per_hour)
    what = f"spot price of {dearest.instance_type} in {dearest.zone}, set {duration(now_s - dearest.set_s)} ago"
    age = duration(now_s - market.read_s)
    failed = f"; could not be read again for {age}: {market.failed}" if market.failed else ""
    return Quote(dearest.usd_per_hour, said=what + failed)


def _listed(words: Collection[str]) -> str:
    return ", ".join(sorted(words))
