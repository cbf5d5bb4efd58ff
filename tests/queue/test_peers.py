"""The peer exchange has one chain per route and region, one head, leaves at its sides, and no circle of workers."""

import itertools
from collections.abc import Collection

import pytest

from echo_queue.errors import ServiceError
from echo_queue.queue import Heartbeat, Joined, Peer
from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.queue.scene import RULES

ROUTE = "0001.00000007/full"
MB = 1_000_000


class Region:
    """Workers that live (their hearts beat) and join, in the order of the calls."""

    def __init__(self, queue: Clients, region: str = "here") -> None:
        self.queue, self.region = queue, region
        queue.configure(RULES)

    def join(
        self,
        worker: str,
        rate: int = 0,
        *,
        leaf: str = "",
        address: str = "10.0.0.1:80",
        left: Collection[str] = (),
        route: str = ROUTE,
    ) -> Joined:
        self.heartbeat(worker)
        return self.queue.join(Peer(worker, self.region, address, rate, leaf), route, left)

    def heartbeat(self, worker: str, every_s: float = 60.0) -> None:
        self.queue.heartbeat(worker, Heartbeat("engine", Version(1, 6), "idle"), every_s)

    def fed_by(self, worker: str, **more: object) -> list[str]:
        joined = self.join(worker, **more)  # type: ignore[arg-type]
        return [upstream.worker for upstream in joined.upstreams]


@pytest.fixture
def region(queue: Clients) -> Region:
    return Region(queue)


def test_the_first_reads_the_store_and_each_other_the_one_before_it(region: Region) -> None:
    assert region.fed_by("a") == []
    assert region.fed_by("b") == ["a"]
    assert region.fed_by("c") == ["b", "a"]
    assert region.fed_by("d")[0] == "c"
    chain = region.queue.client.lrange(f"{region.queue.keys.prefix}chain:here:{ROUTE}", 0, -1)
    assert chain == [b"a", b"b", b"c", b"d"]


def test_joining_again_keeps_the_place_so_that_nobody_waits_in_a_circle(region: Region) -> None:
    for worker in "abc":
        region.join(worker)
    assert region.fed_by("a") == []
    assert region.fed_by("b") == ["a"]
    assert region.fed_by("c", left=["b"]) == ["a"]
    assert region.fed_by("c", left=["a", "b"]) == []


def test_a_worker_that_begins_anew_is_fed_by_those_behind_its_old_place(region: Region) -> None:
    for worker in "abc":
        region.join(worker)
    joined = region.queue.join(Peer("a", "here", "10.0.0.1:81"), ROUTE, restart=True)
    assert joined.upstreams[0].worker == "c"
    assert region.fed_by("a")[0] == "c"


def test_a_head_that_became_a_leaf_is_not_fed_by_those_it_feeds(region: Region) -> None:
    region.join("a", 10)
    for worker in "bcd":
        region.join(worker)
    for worker in "xy":
        region.join(worker, 100, route="another")
    joined = region.join("a", 10)
    assert (joined.leaf, joined.upstreams) == ("slow", ()), "b is fed by it, and so are c and d, over b"
    assert region.fed_by("leaf", leaf="price")[0] == "d"


def test_a_leaf_that_becomes_a_relay_closes_no_circle(region: Region) -> None:
    for worker in "abc":
        region.join(worker)
    assert region.fed_by("b", leaf="price", left=["a"]) == [], "c is fed by it"
    region.join("c", left=["b"])
    assert region.fed_by("b", leaf="price", left=["a"]) == ["c"], "not any more"
    assert region.fed_by("c") == ["a"], "and so the other way round"


def test_regions_and_routes_have_chains_of_their_own(region: Region) -> None:
    region.join("a")
    there = Region(region.queue, "there")
    assert there.fed_by("b") == []
    assert there.fed_by("c") == ["b"]
    assert region.fed_by("d", route="0001.00000007/from-0001.00000006") == []


@pytest.mark.parametrize("leaf", ["price", "leaving", "unreachable"])
def test_nobody_is_fed_from_a_leaf(region: Region, leaf: str) -> None:
    region.join("a")
    assert region.join("b", leaf=leaf).leaf == leaf
    assert region.fed_by("c") == ["a"]


def test_who_has_no_address_is_a_leaf(region: Region) -> None:
    region.join("a")
    assert region.join("b", address="").leaf == "unreachable"
    assert region.fed_by("c") == ["a"]


def test_a_worker_at_less_than_half_the_usual_rate_is_a_leaf(region: Region) -> None:
    for worker, rate in (("a", 50 * MB), ("b", 24 * MB), ("c", 50 * MB), ("d", 0)):
        joined = region.join(worker, rate)
        assert joined.leaf == ("slow" if worker == "b" else "")
    assert joined.rate == 50 * MB
    assert sorted(region.fed_by("e")) == ["a", "c", "d"]


def test_a_leaf_that_comes_first_does_not_make_everyone_read_the_store(region: Region) -> None:
    assert region.fed_by("leaf", leaf="price") == []
    assert region.fed_by("a") == []
    assert region.fed_by("b") == ["a"]
    assert region.fed_by("leaf", leaf="price") == ["b", "a"]


def test_a_leaf_is_told_to_hold_on_while_a_head_is_still_to_come(region: Region) -> None:
    region.join("a", route="another")
    assert region.join("leaf", leaf="price").hold
    region.join("a")
    assert not region.join("leaf", leaf="price").hold
    assert not Region(region.queue, "alone").join("other", leaf="price").hold


def rates(region: Region) -> set[bytes]:
    return set(region.queue.client.zrange(f"{region.queue.keys.prefix}rates:here", 0, -1))


@pytest.mark.parametrize("rate", [0, MB, 100 * MB])
def test_the_killed_are_forgotten_and_neither_hide_a_head_nor_say_what_is_usual(region: Region, rate: int) -> None:
    for number in range(200):
        region.join(f"dead{number}", rate, route="before")
        region.queue.client.delete(region.queue.keys.worker(f"dead{number}"))
    region.join("head", 10 * MB, route="before")
    joined = region.join("leaf", leaf="price")
    assert joined.hold and joined.rate == 10 * MB
    assert rates(region) == {b"head", b"leaf"}


def test_the_killed_are_forgotten_behind_many_who_are_faster(region: Region) -> None:
    for number in range(100):
        region.join(f"fast{number}", 100 * MB + number)
    for number in range(100):
        region.join(f"dead{number}", number)
        region.queue.client.delete(region.queue.keys.worker(f"dead{number}"))
    for _ in range(1000):
        region.join("fast0", 100 * MB)
        if len(rates(region)) == 100:
            break
    assert not any(name.startswith(b"dead") for name in rates(region))


def test_who_leaves_is_not_counted_again_by_what_it_still_fetches(region: Region) -> None:
    region.join("a", 50 * MB)
    region.queue.withdraw("a")
    region.join("a", 50 * MB, leaf="leaving")
    assert rates(region) == set()


def test_leaves_spread_over_the_relays(region: Region) -> None:
    for worker in "abc":
        region.join(worker)
    first = [region.fed_by(f"leaf{number}", leaf="price")[0] for number in range(4)]
    assert first[0] == "c" and len(set(first)) == 3


def test_a_dead_worker_feeds_nobody(region: Region) -> None:
    region.join("a")
    region.join("b")
    region.queue.client.delete(region.queue.keys.worker("b"))
    assert region.fed_by("c") == ["a"]


def test_who_has_withdrawn_feeds_nobody(region: Region) -> None:
    region.join("a")
    region.join("b", 50 * MB)
    region.queue.withdraw("b")
    region.queue.withdraw("b")
    joined = region.join("c")
    assert ([upstream.worker for upstream in joined.upstreams], joined.rate) == (["a"], 0)


@pytest.mark.parametrize("reason", ["bad", "unreachable"])
def test_a_peer_that_two_workers_reported_is_given_to_nobody(region: Region, reason: str) -> None:
    for worker in "abc":
        region.join(worker)
    assert region.queue.report("b", "a", reason) == 1  # type: ignore[arg-type]
    assert region.queue.report("b", "a", reason) == 1  # type: ignore[arg-type]
    assert "a" in region.fed_by("c")
    assert region.queue.report("c", "a", reason) == 2  # type: ignore[arg-type]
    assert region.fed_by("c") == ["b"]
    assert region.join("a").leaf == reason


def test_nobody_can_report_itself_or_fill_the_server_with_reports(region: Region) -> None:
    region.join("a")
    assert region.queue.report("a", "a", "bad") == 0
    for number in range(100):
        region.queue.report(f"w{number}", "a", "bad")
    assert region.queue.client.hlen(f"{region.queue.keys.prefix}reports:a") == 64


def test_everything_about_peers_expires(region: Region) -> None:
    for worker in "ab":
        region.join(worker, 50 * MB)
    region.queue.report("a", "b", "bad")
    client, prefix = region.queue.client, region.queue.keys.prefix
    kinds = ("peer", "chain", "feeds", "rates", "reports")
    for key in itertools.chain.from_iterable(client.scan_iter(f"{prefix}{kind}:*") for kind in kinds):
        assert client.pttl(key) > 0, key


@pytest.mark.parametrize(
    "peer",
    [
        Peer("a b", "here", ""),
        Peer("a", "here or there", ""),
        Peer("a", "here", "host name:80"),
        Peer("a", "here", "x" * 300),
        Peer("a", "here", "", rate=-1),
        Peer("a", "here", "", leaf="Because!"),
    ],
)
def test_words_of_another_form_are_refused(region: Region, peer: Peer) -> None:
    with pytest.raises(ServiceError):
        region.queue.join(peer, ROUTE)


def test_a_thousand_workers_join_in_time(region: Region) -> None:
    """Each join looks at a bounded part of the chain, apart from one read of it."""
    for number in range(1000):
        region.queue.client.rpush(f"{region.queue.keys.prefix}chain:here:{ROUTE}", f"gone{number}")
    assert region.fed_by("a") == []
    assert region.fed_by("b") == ["a"]
