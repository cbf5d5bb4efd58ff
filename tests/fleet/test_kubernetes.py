"""Deployments as pools: what Kubernetes does of its own accord, and what it refuses, starts and ends nothing twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.errors import ConfigError
from echo_queue.fleet.drivers import DriverError
from echo_queue.fleet.drivers.groups.kubernetes import Deployments
from echo_queue.fleet.drivers.groups.kubernetes_api import KubernetesApi, opened
from echo_queue.fleet.state import Machine
from echo_queue.queue import Heartbeat, WorkerOrder
from echo_queue.records import Version
from tests.fleet.fleet_harness import FleetHarness, fleet_of
from tests.fleet.places.pods import Pods
from tests.queue.clients import Clients
from tests.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Pods]:
    with Pods.opened(tmp_path) as place:
        yield place


def started(place: Pods, *names: str) -> None:
    driver = place.driver()
    assert all([driver.start(name, "spot") for name in names])
    place.until_up(len(names))


def hosts(place: Pods) -> dict[str, str]:
    return {one.name: one.host for one in place.driver().machines()}


def test_the_named_pod_ends_although_others_wait_for_a_node_and_would_be_taken_before_it(place: Pods) -> None:
    started(place, "a", "b")
    place.cluster.nodes = 2
    driver = place.driver()
    assert driver.start("c", "spot"), "it waits for a node"
    before = hosts(place)
    driver.end(["a"])
    place.cluster.nodes = 3
    wait_until(lambda: set(hosts(place)) == {"b", "c"} and hosts(place)["c"], "c instead of a")
    assert hosts(place)["b"] == before["b"], "what serves goes on"
    driver.end(["c", "b"])
    wait_until(lambda: not place.cluster.pods and not driver.machines(), "the end of all")


def test_a_launch_that_waits_for_a_node_is_taken_back_and_no_other(place: Pods) -> None:
    started(place, "a")
    place.cluster.nodes = 1
    driver = place.driver()
    assert driver.start("b", "spot") and driver.start("c", "spot")
    before = hosts(place)
    driver.end(["b"])
    wait_until(lambda: len(place.cluster.pods) == 2, "the end of one that waits")
    assert hosts(place) == {"a": before["a"], "c": ""}


def test_a_pod_in_place_of_one_that_was_lost_is_a_machine_of_its_own_name(place: Pods) -> None:
    """The lost one's name starts nothing any more; a start takes what Kubernetes puts in its place."""
    started(place, "a", "b")
    place.cluster.lose(hosts(place)["a"])
    place.until_up(2)
    (other,) = set(hosts(place)) - {"b"}
    assert hosts(place)[other] == other == place.cluster.made[-1]
    assert place.driver().start("a", "spot") and len(hosts(place)) == 2
    place.driver().end([other])
    wait_until(lambda: set(hosts(place)) == {"b"}, "its end")
    place.cluster.lose(hosts(place)["b"])
    assert place.driver().start("c", "spot")
    place.until_up(1)
    assert set(hosts(place)) == {"c"}


def test_a_size_that_was_set_by_hand_is_found(place: Pods) -> None:
    place.cluster.deployments["demo-worker-rest"].replicas = 2
    place.until_up(2)
    found = place.driver().machines()
    assert set(found) == {Machine(name, "rest", name) for name in place.cluster.made}
    place.driver().end([place.cluster.made[0]])
    wait_until(lambda: len(place.driver().machines()) == 1, "the end of one")


def test_a_change_that_rests_on_an_older_version_is_made_anew_and_not_for_ever(place: Pods) -> None:
    place.cluster.interferes = 3
    started(place, "a")
    assert place.ever() == 1
    place.cluster.interferes = 1000
    with pytest.raises(DriverError, match="who else scales it"):
        place.driver().end(["a"])
    place.cluster.interferes = 0
    place.driver().end(["a"])
    wait_until(lambda: not place.driver().machines(), "its end")


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_an_api_server_that_is_throttling_is_no_answer_and_the_call_may_come_again(place: Pods, method: str) -> None:
    started(place, "a", "b")
    driver = place.driver()
    place.cluster.refusals = [(method, 429)]
    with pytest.raises(DriverError, match=r"429.*too many requests"):
        driver.end(["a"])
    driver.end(["a"])
    wait_until(lambda: set(hosts(place)) == {"b"}, "the end of one")
    assert place.ever() == 2


def test_without_notes_everything_is_listed_and_nothing_is_written(place: Pods) -> None:
    place.cluster.deployments["demo-worker-spot"].replicas = 2
    place.cluster.refusals = [("PATCH", 500), ("DELETE", 500)]
    wait_until(lambda: len(place.driver(notes=False).machines()) == place.running() == 2, "two pods")
    assert place.cluster.refusals == [("PATCH", 500), ("DELETE", 500)]


@pytest.mark.parametrize(
    ("release", "token", "said"),
    [
        ("demo", "wrong", "401(?s:.*)service account"),
        ("another", "t0ken", r"404(?s:.*)controller\.enabled"),
    ],
)
def test_a_driver_without_rights_or_chart_says_what_it_lacks(
    place: Pods, tmp_path: Path, release: str, token: str, said: str
) -> None:
    (tmp_path / "token").write_text(token)
    with place.cluster.serving() as url:
        api = KubernetesApi(url, "runs", 30.0, token=tmp_path / "token")
        with pytest.raises(DriverError, match=said):
            Deployments(api, release, ["spot"]).read("spot")


def test_an_api_server_that_is_away_is_no_answer() -> None:
    with pytest.raises(DriverError, match=r"controller\.api is its address"):
        Deployments(KubernetesApi("http://127.0.0.1:1", "runs", 1.0), "demo", ["spot"]).read("spot")


def test_outside_a_cluster_the_address_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="kubectl proxy"):
        opened("", "", 30.0, {})


def test_a_worker_that_is_called_like_its_pod_is_counted_and_told_by_its_machines_name(
    queue: Clients, place: Pods, tmp_path: Path
) -> None:
    harness = FleetHarness(queue, "", tmp_path / "fleet")
    fleet = fleet_of({"spot": 1.0}, rest_s=600)
    harness.trains(1.0)
    controller = harness.controller(fleet, place.driver(), name="c1")

    def beat() -> bool:
        harness.queue.reclaim()
        for pod in place.cluster.ready():
            beat = Heartbeat("none", Version(0, 0), "generating", 1.0, 1.0, 1, pool="spot", machine=pod)
            harness.queue.heartbeat(f"{pod}-x", beat, every_s=60.0)
        return True

    turn = harness.until(controller, lambda turn: beat() and len(turn.decision.memory.serving) == 3, "three pods")
    assert set(turn.decision.memory.serving) == {one.name for one in turn.state.machines}
    harness.trains(2.0)
    turn = harness.until(controller, lambda turn: beat() and len(turn.decision.memory.dismissals) == 1, "a dismissal")
    (dismissed,) = turn.decision.memory.dismissals
    told = f"{hosts(place)[dismissed]}-x"
    beats = Heartbeat("none", Version(0, 0), "generating", 1.0, 1.0, 1, pool="spot", machine="")
    assert harness.queue.heartbeat(told, beats, every_s=60.0) == WorkerOrder("rest")
