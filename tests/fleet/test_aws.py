"""Auto Scaling groups as pools: what AWS refuses, delays and does of its own accord starts and ends nothing twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.fleet.drivers import Driver, DriverError
from tests.fleet.places.instances import Instances
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Instances]:
    with Instances.opened(tmp_path) as place:
        yield place
        assert place.cloud.own_choice == 0, "no size was lowered below what there was"


def hosts(place: Instances) -> dict[str, str]:
    return {one.name: one.host for one in place.driver().machines()}


def available(driver: Driver) -> dict[str, int | None]:
    return {pool: quote.available for pool, quote in driver.offers().items()}


def test_a_group_that_is_full_has_none_to_give_and_says_before_how_many_it_has(place: Instances) -> None:
    driver, most = place.driver(), place.cloud.most
    place.cloud.capacity = 0
    assert all([driver.start(f"a-{number}", "spot") for number in range(most)])
    assert not driver.start("one-more", "spot")
    assert available(driver) == {"spot": 0, "rest": most}
    driver.end(["a-0"])
    assert available(driver)["spot"] == 1 and driver.start("b", "spot")


def test_instances_come_as_far_as_there_is_capacity_and_the_rest_is_taken_back(place: Instances) -> None:
    """A name that was taken back is used, and what runs goes on."""
    place.cloud.capacity = 1
    driver = place.driver()
    assert all([driver.start(name, "spot") for name in ("a", "b", "c")])
    place.until_up(1)
    before = hosts(place)
    assert before["a"] and (before["b"], before["c"]) == ("", "")
    driver.end(["b", "c"])
    assert driver.start("b", "spot") and hosts(place) == {"a": before["a"]}
    place.cloud.capacity = 5
    assert driver.start("d", "spot")
    place.until_up(2)
    assert hosts(place)["a"] == before["a"] and place.ever() == 2


def test_throttled_requests_are_no_answer_and_the_call_may_come_again(place: Instances) -> None:
    driver = place.driver()
    assert driver.start("a", "spot") and driver.start("b", "spot")
    place.until_up(2)
    place.cloud.throttles = 3
    with pytest.raises(DriverError, match="Rate exceeded"):
        driver.end(["a"])
    driver.end(["a"])
    driver.end(["a"])
    wait_until(lambda: set(hosts(place)) == {"b"}, "the end of one")
    assert place.ever() == 2


def test_an_instance_in_place_of_one_that_was_lost_is_a_machine_of_its_own_id(place: Instances) -> None:
    driver = place.driver()
    assert driver.start("a", "spot")
    place.until_up(1)
    place.cloud.lose(hosts(place)["a"])
    place.until_up(1)
    wait_until(lambda: "a" not in hosts(place), "the end of the lost one")
    ((other, host),) = hosts(place).items()
    assert other == host and driver.start("a", "spot") and len(hosts(place)) == 1
    driver.end([other])
    wait_until(lambda: not hosts(place), "its end")


def test_without_notes_everything_is_listed_and_nothing_is_written(place: Instances) -> None:
    place.driver().start("a", "spot")
    place.cloud.actions.clear()
    wait_until(lambda: [one.host for one in place.driver(notes=False).machines()] == place.cloud.running(), "one")
    assert set(place.cloud.actions) == {"DescribeAutoScalingGroups", "DescribeInstances"}


def test_a_pool_without_a_group_is_named(place: Instances) -> None:
    with pytest.raises(DriverError, match=f"no Auto Scaling group eq-{place.run}-spot-2"):
        place.groups({"spot-2": "eu-central-1"}).read("spot-2")
