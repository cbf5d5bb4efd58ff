"""Spot prices of AWS: a pool costs what its dearest machine may, and a price that does not count says why."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from echo_queue.errors import Problem
from echo_queue.fleet.drivers import DriverError
from echo_queue.fleet.drivers.groups.aws_prices import EVERY_S, KEPT_S, OLD_S, Market, SpotPrices, market_of
from echo_queue.fleet.drivers.protocol import Quote
from tests.fleet.fleet_harness import FleetHarness, fleet_of
from tests.fleet.places.aws_double import TYPES, ZONES, Spot
from tests.fleet.places.instances import Instances
from tests.queue.clients import Clients

NOW_S = 1_800_000_000.0
SPOT = {
    "MixedInstancesPolicy": {
        "InstancesDistribution": {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": 0},
        "LaunchTemplate": {"Overrides": [{"InstanceType": "g5.xlarge"}, {"InstanceType": "g6.xlarge"}]},
    },
    "AvailabilityZones": ["z-a", "z-b"],
}


def entry(usd: float, age_s: float, *, of: str = "g5.xlarge", zone: str = "z-a") -> dict[str, object]:
    set_at = datetime.fromtimestamp(NOW_S - age_s, UTC)
    return {"InstanceType": of, "AvailabilityZone": zone, "SpotPrice": f"{usd}", "Timestamp": set_at}


class Clock:
    """A cloud whose market and whose time a test sets."""

    def __init__(self, market: Market) -> None:
        self.market = market
        self.now_s = NOW_S
        self.away = ""
        self.reads = 0

    def read(self, pool: str) -> Market:
        self.reads += 1
        if self.away:
            raise DriverError(Problem(f"pools.{pool}", self.away, "wait"))
        return self.market

    def prices(self) -> SpotPrices:
        return SpotPrices(self.read, lambda: self.now_s)


def test_the_dearest_of_a_groups_types_and_zones_counts_by_its_latest_price() -> None:
    history = [
        *(entry(0.3, 7200.0), entry(9.0, 9000.0), entry(0.4, 1800.0, of="g6.xlarge", zone="z-b")),
        *(entry(0.2, 60.0, zone="z-b"), entry(5.0, 0.0, zone="z-c"), entry(6.0, 0.0, of="p5.48xlarge")),
    ]
    price = Clock(market_of(SPOT, history)).prices().of("spot")
    assert price == Quote(0.4, said="spot price of g6.xlarge in z-b, set 30 min 00 s ago")


@pytest.mark.parametrize(
    ("group", "history", "said"),
    [
        (SPOT, [], "AWS states no spot price for g5.xlarge, g6.xlarge in z-a, z-b"),
        (SPOT, [entry(0.3, OLD_S + 86_400)], "its spot price was set 8 days 0 h ago, which is too old"),
        ({"AvailabilityZones": ["z-a"]}, [entry(0.3, 0.0)], "its group is not of spot machines alone"),
    ],
)
def test_a_price_that_is_absent_or_old_is_none_and_says_so(group: object, history: list[object], said: str) -> None:
    price = Clock(market_of(group, history)).prices().of("spot")
    assert price.usd_per_hour is None and said in price.said


def test_a_zone_where_nothing_was_sold_for_long_does_not_make_the_others_dearer() -> None:
    history = [entry(0.3, 60.0), entry(9.0, OLD_S + 1, zone="z-b")]
    assert Clock(market_of(SPOT, history)).prices().of("spot").usd_per_hour == 0.3


def test_prices_are_read_every_few_minutes_and_kept_for_a_while_where_they_cannot_be() -> None:
    clock = Clock(market_of(SPOT, [entry(0.3, 60.0)]))
    prices = clock.prices()
    assert [prices.of("spot").usd_per_hour for _ in range(3)] == [0.3] * 3 and clock.reads == 1
    clock.away, clock.now_s = "not authorized", NOW_S + EVERY_S
    price = prices.of("spot")
    assert price.usd_per_hour == 0.3 and "could not be read again for 5 min 00 s: not authorized" in price.said
    assert prices.of("spot") == price and clock.reads == 2, "it is not asked again at once"
    clock.now_s = NOW_S + KEPT_S + EVERY_S
    assert prices.of("spot") == Quote(said="its spot price cannot be read: not authorized")
    clock.away, clock.now_s = "", clock.now_s + EVERY_S
    clock.market = replace(clock.market, prices=market_of(SPOT, [entry(0.5, 0.0)]).prices)
    assert prices.of("spot").usd_per_hour == 0.5


@pytest.mark.slow
def test_a_controller_decides_by_the_spot_prices_of_now_and_says_where_each_price_comes_from(
    queue: Clients, tmp_path: Path
) -> None:
    """What is dearer in the fleet file is cheaper today."""
    fleet, harness = fleet_of({"spot": 1.0, "rest": 2.0}), FleetHarness(queue, "", tmp_path / "fleet")
    harness.trains(1.0)
    with Instances.opened(tmp_path / "aws") as place:
        cheap, dear = ((kind, zone) for kind, zone in zip(TYPES, ZONES, strict=True))
        place.cloud.spot = {cheap: Spot(0.25, 60.0), dear: Spot(0.5, 7200.0)}
        turn = harness.controller(fleet, place.driver(), act=False).turn()
        assert turn and {one.pool: one.usd_per_hour for one in turn.demand.offers} == {"spot": 0.5, "rest": 0.5}
        words = f"0.5 USD: spot price of {TYPES[1]} in {ZONES[1]}, set 2 h 00 min ago"
        assert turn.demand.prices == {"spot": words, "rest": words}


@pytest.mark.slow
def test_without_the_right_to_read_prices_those_of_the_fleet_file_count(queue: Clients, tmp_path: Path) -> None:
    fleet, harness = fleet_of({"spot": 1.0, "rest": 2.0}), FleetHarness(queue, "", tmp_path / "fleet")
    harness.trains(1.0)
    with Instances.opened(tmp_path / "aws") as place:
        place.cloud.forbidden = {"DescribeSpotPriceHistory"}
        turn = harness.controller(fleet, place.driver(), act=False).turn()
        assert turn and {one.pool: one.usd_per_hour for one in turn.demand.offers} == {"spot": 1.0, "rest": 2.0}
        assert turn.demand.prices["spot"].startswith("1 USD, as the fleet file says of 2026-11-23: its spot price")
        assert "not authorized to perform: DescribeSpotPriceHistory" in turn.demand.prices["spot"]
    with Instances.opened(tmp_path / "mixed", on_demand=50) as place:
        assert "not of spot machines alone" in place.driver().offers()["spot"].said
