"""The peer exchange has one chain per route and region, one head, leaves at its sides, and no circle of workers."""

import itertools
import random
from collections.abc import Callable, Collection

import pytest

from echo_queue.errors import ServiceError
from echo_queue.queue import Heartbeat, Joined, Peer
from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES

ROUTE = "0001.00000007/full"
MB = 1_000_000


class ChainHarness:
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
def harness(queue: Clients) -> ChainHarness:
    return ChainHarness(queue)


def test_the_first_reads_the_store_and_each_other_the_one_before_it(harness: ChainHarness) -> None:
    assert harness.fed_by("a") == []
    assert harness.fed_by("b") == ["a"]
    assert harness.fed_by("c") == ["b", "a"]
    assert harness.fed_by("d")[0] == "c"
    chain = harness.queue.client.zrange(f"{harness.queue.keys.prefix}chain:here:{ROUTE}", 0, -1)
    assert chain == [b"a", b"b", b"c", b"d"]


def test_joining_again_keeps_the_place_so_that_nobody_waits_in_a_circle(harness: ChainHarness) -> None:
    for worker in "abc":
        harness.join(worker)
    assert harness.fed_by("a") == []
    assert harness.fed_by("b") == ["a"]
    assert harness.fed_by("c", left=["b"]) == ["a"]
    assert harness.fed_by("c", left=["a", "b"]) == []


def test_a_worker_that_begins_anew_is_fed_by_those_behind_its_old_place(harness: ChainHarness) -> None:
    for worker in "abc":
        harness.join(worker)
    joined = harness.queue.join(Peer("a", "here", "10.0.0.1:81"), ROUTE, restart=True)
    assert joined.upstreams[0].worker == "c"
    assert harness.fed_by("a")[0] == "c"


def test_a_head_that_became_a_leaf_is_not_fed_by_those_it_feeds(harness: ChainHarness) -> None:
    harness.join("a", 10)
    for worker in "bcd":
        harness.join(worker)
    for worker in "xy":
        harness.join(worker, 100, route="another")
    joined = harness.join("a", 10)
    assert (joined.leaf, joined.upstreams) == ("slow", ()), "b is fed by it, and so are c and d, over b"
    assert harness.fed_by("leaf", leaf="price")[0] == "d"


def test_a_leaf_that_becomes_a_relay_closes_no_circle(harness: ChainHarness) -> None:
    for worker in "abc":
        harness.join(worker)
    assert harness.fed_by("b", leaf="price", left=["a"]) == [], "c is fed by it"
    harness.join("c", left=["b"])
    assert harness.fed_by("b", leaf="price", left=["a"]) == ["c"], "not any more"
    assert harness.fed_by("c") == ["a"], "and so the other way round"


def test_a_worker_that_is_no_longer_slow_does_not_feed_the_one_that_feeds_it(harness: ChainHarness) -> None:
    for worker in "abc":
        harness.join(worker)
    harness.join("c", left=["b"])
    for worker in "xy":
        harness.join(worker, 100, route="another")
    joined = harness.join("b", 10, left=["a"])
    assert (joined.leaf, [upstream.worker for upstream in joined.upstreams]) == ("slow", ["c"])
    for worker in "xy":
        harness.queue.withdraw(worker)
    assert harness.fed_by("d")[0] == "b", "it is as fast as any"
    assert harness.fed_by("c", left=["a"]) == []


def test_regions_and_routes_have_chains_of_their_own(harness: ChainHarness) -> None:
    harness.join("a")
    there = ChainHarness(harness.queue, "there")
    assert there.fed_by("b") == []
    assert there.fed_by("c") == ["b"]
    assert harness.fed_by("d", route="0001.00000007/from-0001.00000006") == []


@pytest.mark.parametrize("leaf", ["price", "leaving", "unreachable"])
def test_nobody_is_fed_from_a_leaf(harness: ChainHarness, leaf: str) -> None:
    harness.join("a")
    assert harness.join("b", leaf=leaf).leaf == leaf
    assert harness.fed_by("c") == ["a"]


def test_who_has_no_address_is_a_leaf(harness: ChainHarness) -> None:
    harness.join("a")
    assert harness.join("b", address="").leaf == "unreachable"
    assert harness.fed_by("c") == ["a"]


def test_a_worker_at_less_than_half_the_usual_rate_is_a_leaf(harness: ChainHarness) -> None:
    for worker, rate in (("a", 50 * MB), ("b", 24 * MB), ("c", 50 * MB), ("d", 0)):
        joined = harness.join(worker, rate)
        assert joined.leaf == ("slow" if worker == "b" else "")
    assert joined.rate == 50 * MB
    assert sorted(harness.fed_by("e")) == ["a", "c", "d"]


def test_a_leaf_that_comes_first_does_not_make_everyone_read_the_store(harness: ChainHarness) -> None:
    assert harness.fed_by("leaf", leaf="price") == []
    assert harness.fed_by("a") == []
    assert harness.fed_by("b") == ["a"]
    assert harness.fed_by("leaf", leaf="price") == ["b", "a"]


def test_a_leaf_is_told_to_hold_on_while_a_head_is_still_to_come(harness: ChainHarness) -> None:
    harness.join("a", route="another")
    assert harness.join("leaf", leaf="price").hold
    harness.join("a")
    assert not harness.join("leaf", leaf="price").hold
    assert not ChainHarness(harness.queue, "alone").join("other", leaf="price").hold


def rates(harness: ChainHarness) -> set[bytes]:
    return set(harness.queue.client.zrange(f"{harness.queue.keys.prefix}rates:here", 0, -1))


@pytest.mark.parametrize("rate", [0, MB, 100 * MB])
def test_the_killed_are_forgotten_and_neither_hide_a_head_nor_say_what_is_usual(
    harness: ChainHarness, rate: int
) -> None:
    for number in range(200):
        harness.join(f"dead{number}", rate, route="before")
        harness.queue.client.delete(harness.queue.keys.worker(f"dead{number}"))
    harness.join("head", 10 * MB, route="before")
    joined = harness.join("leaf", leaf="price")
    assert joined.hold and joined.rate == 10 * MB
    assert rates(harness) == {b"head", b"leaf"}


def test_the_killed_are_forgotten_behind_many_who_are_faster(harness: ChainHarness) -> None:
    for number in range(100):
        harness.join(f"fast{number}", 100 * MB + number)
    for number in range(100):
        harness.join(f"dead{number}", number)
        harness.queue.client.delete(harness.queue.keys.worker(f"dead{number}"))
    for _ in range(1000):
        harness.join("fast0", 100 * MB)
        if len(rates(harness)) == 100:
            break
    assert not any(name.startswith(b"dead") for name in rates(harness))


def test_who_leaves_is_not_counted_again_by_what_it_still_fetches(harness: ChainHarness) -> None:
    harness.join("a", 50 * MB)
    harness.queue.withdraw("a")
    harness.join("a", 50 * MB, leaf="leaving")
    assert rates(harness) == set()


def test_leaves_spread_over_the_relays(harness: ChainHarness) -> None:
    for worker in "abc":
        harness.join(worker)
    first = [harness.fed_by(f"leaf{number}", leaf="price")[0] for number in range(4)]
    assert first[0] == "c" and len(set(first)) == 3


def test_a_dead_worker_feeds_nobody(harness: ChainHarness) -> None:
    harness.join("a")
    harness.join("b")
    harness.queue.client.delete(harness.queue.keys.worker("b"))
    assert harness.fed_by("c") == ["a"]


def test_who_has_withdrawn_feeds_nobody(harness: ChainHarness) -> None:
    harness.join("a")
    harness.join("b", 50 * MB)
    harness.queue.withdraw("b")
    harness.queue.withdraw("b")
    joined = harness.join("c")
    assert ([upstream.worker for upstream in joined.upstreams], joined.rate) == (["a"], 0)


@pytest.mark.parametrize("reason", ["bad", "unreachable", "dry"])
def test_a_peer_that_two_workers_reported_is_given_to_nobody(harness: ChainHarness, reason: str) -> None:
    for worker in "abc":
        harness.join(worker)
    assert harness.queue.report("b", "a", reason) == 1  # type: ignore[arg-type]
    assert harness.queue.report("b", "a", reason) == 1  # type: ignore[arg-type]
    assert "a" in harness.fed_by("c")
    assert harness.queue.report("c", "a", reason) == 2  # type: ignore[arg-type]
    assert harness.fed_by("c") == ["b"]
    assert harness.join("a").leaf == reason


def test_whoever_forges_reports_takes_at_most_a_quarter_of_a_region_out_of_its_chains(harness: ChainHarness) -> None:
    """Workers share one Redis user, so any of them can report in the names of all others."""
    workers = [f"w{number}" for number in range(8)]
    for worker in workers:
        harness.join(worker)
    for peer in workers:
        for reason in ("bad", "unreachable", "dry"):
            for forged in ("w0", "w1", "w2"):
                harness.queue.report(forged, peer, reason)  # type: ignore[arg-type]
    leaves = [worker for worker in workers if harness.join(worker).leaf]
    assert len(leaves) == 2
    assert set(harness.fed_by("last")) == set(workers) - set(leaves)
    harness.queue.withdraw(leaves[0])
    harness.queue.report("w7", "w6", "bad")
    assert harness.join("w6").leaf == "bad", "who has left makes room for another"


def test_nobody_can_report_itself_or_fill_the_server_with_reports(harness: ChainHarness) -> None:
    harness.join("a")
    assert harness.queue.report("a", "a", "bad") == 0
    for number in range(100):
        harness.queue.report(f"w{number}", "a", "bad")
    assert harness.queue.client.hlen(f"{harness.queue.keys.prefix}reports:a") == 64


def test_everything_about_peers_expires(harness: ChainHarness) -> None:
    for worker in "ab":
        harness.join(worker, 50 * MB)
    for worker in "ac":
        harness.queue.report(worker, "b", "bad")
    client, prefix = harness.queue.client, harness.queue.keys.prefix
    kinds = ("peer", "chain", "feeds", "fed", "rates", "reports", "blamed")
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
def test_words_of_another_form_are_refused(harness: ChainHarness, peer: Peer) -> None:
    with pytest.raises(ServiceError):
        harness.queue.join(peer, ROUTE)


def upstreams(harness: ChainHarness) -> dict[str, str]:
    """Returns who is sent to whom first. A worker that has started again since then feeds nobody."""
    client, at = harness.queue.client, f"here:{ROUTE}"
    feeds: dict[bytes, bytes] = client.hgetall(f"{harness.queue.keys.prefix}feeds:{at}")  # type: ignore[assignment]
    edges = {}
    for worker, fed_by in feeds.items():
        name, _, places = fed_by.decode().partition(" ")
        if places and client.zscore(f"{harness.queue.keys.prefix}chain:{at}", name) == int(places.split()[0]):
            edges[worker.decode()] = name
    return edges


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_join_in_any_order_and_manner_never_wait_in_a_circle(harness: ChainHarness, seed: int) -> None:
    draw, names = random.Random(seed), "abcdefgh"
    for _ in range(150):
        worker, leaf, left = draw.choice(names), draw.choice(["", "", "price"]), draw.sample(names, draw.randrange(5))
        harness.heartbeat(worker)
        peer = Peer(worker, "here", "10.0.0.1:80", 0, leaf)
        harness.queue.join(peer, ROUTE, left, restart=draw.random() < 0.1)
        edges = upstreams(harness)
        for begin in edges:
            path = [begin]
            while path[-1] in edges:
                path.append(edges[path[-1]])
                assert path[-1] != begin, f"{path} after {worker} joined"
                assert len(path) <= len(names), path
    assert edges


def test_nonsense_that_a_worker_writes_by_hand_fails_no_join(harness: ChainHarness) -> None:
    for worker in "abc":
        harness.join(worker)
    client, prefix, at = harness.queue.client, harness.queue.keys.prefix, f"here:{ROUTE}"
    client.hset(f"{prefix}fed:{at}", mapping={"a 1": "x", "b 2": "inf", "c 3": "-7"})
    client.hset(f"{prefix}feeds:{at}", mapping={"a": "x", "b": "a 99999999999999999999 1", "c": ""})
    client.zadd(f"{prefix}chain:{at}", {"made up": float("inf"), "d": 2.5})
    client.hset(f"{prefix}peer:d", "address", "10.0.0.1:80")
    harness.heartbeat("d")
    for worker in "abcdabc":
        harness.join(worker)
        harness.join(worker, leaf="price")


WHOLE = {"hgetall", "lrange", "lrem", "smembers", "hkeys", "hvals", "keys", "scan", "xpending"}
"""Commands whose cost grows with their key; the reports of one peer, which `hkeys` reads, are bounded."""


def commands_of(queue: Clients, act: Callable[[], object]) -> dict[str, int]:
    """How often the server carries out each command for `act`, inside functions as well."""
    queue.client.config_resetstat()
    act()
    rows: dict[str, dict[str, int]] = queue.client.info("commandstats")  # type: ignore[assignment]
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in rows.items()}


CROWD = """
for n = 1, 2000 do
  local worker, before = 'w' .. n, 'w' .. (n - 1)
  redis.call('ZADD', KEYS[1] .. 'chain:here:' .. ARGV[1], 100 + n, worker)
  redis.call('ZADD', KEYS[1] .. 'rates:here', 0, worker)
  redis.call('HSET', KEYS[1] .. 'feeds:here:' .. ARGV[1], worker, before .. ' ' .. 99 + n .. ' ' .. 99 + n)
  redis.call('HSET', KEYS[1] .. 'fed:here:' .. ARGV[1], before .. ' ' .. 99 + n, 1)
  redis.call('HSET', KEYS[1] .. 'worker:' .. worker, 'engine', 'e')
  redis.call('HSET', KEYS[1] .. 'peer:' .. worker, 'region', 'here', 'address', 'h:1', 'rate', 0, 'leaf', '')
end
"""


def test_a_join_costs_no_more_in_a_chain_of_two_thousand(harness: ChainHarness) -> None:
    queue = harness.queue
    few = [commands_of(queue, lambda name=name: harness.join(name)) for name in "abcdefghijklmnopqrst"]  # type: ignore[misc]
    queue.client.eval(CROWD, 1, queue.keys.prefix, ROUTE)
    many = [commands_of(queue, lambda name=name: harness.join(name)) for name in ("x", "y", "a", "k")]  # type: ignore[misc]
    assert harness.fed_by("z")[:2] == ["y", "x"]
    assert max(sum(calls.values()) for calls in many) <= max(sum(calls.values()) for calls in few) + 16
    assert {name for calls in many for name in calls} & WHOLE <= {"hkeys"}
