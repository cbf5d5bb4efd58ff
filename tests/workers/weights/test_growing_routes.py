"""Routes that grow while they are fetched: shared like any other, handed over whole, and given up without a trace."""

import time

import pytest

from echo_queue.errors import ServiceError
from echo_queue.weights.manifest import Route
from tests.waiting import wait_until
from tests.workers.weights.peer_harness import CHUNK, DEADLINE_S, HASTY_S, Member, PeerHarness, random_parts, route_of
from workers.weights.cache.download import RouteDownload
from workers.weights.peers.server import ANNOUNCED_WAIT_S


def prefetched(member: Member, route: Route, parts: int) -> RouteDownload:
    """Returns the first `parts` parts of a route."""
    download: RouteDownload | None = member.exchange.prefetch(route.name, route.parts[:parts], DEADLINE_S)
    assert download is not None
    return download


def here(member: Member, route: Route, parts: int) -> None:
    wait_until(
        lambda: all((file := member.part_cache.find(p.key)) and file.whole for p in route.parts[:parts]),
        f"{parts} parts",
    )


def test_what_is_fetched_goes_on_from_what_was_prefetched(peer_harness: PeerHarness) -> None:
    datas = random_parts(8, parts=4)
    route, member = peer_harness.publish(*datas), peer_harness.member("a")
    prefetched(member, route, 3)
    here(member, route, 2)
    assert member.fetch(route) == (route.size, 0), "as one download"
    assert member.holds(route, datas) and member.exchange.fetched["store"] == route.size
    assert peer_harness.queue.client.zrange(f"{peer_harness.queue.keys.prefix}chain:default:{route.name}", 0, -1) == [
        b"a"
    ]


@pytest.mark.parametrize("later_s", [ANNOUNCED_WAIT_S / 2, 2 * ANNOUNCED_WAIT_S])
def test_a_peer_that_hears_of_a_part_later_is_not_left_for_the_store(
    peer_harness: PeerHarness, patient_sources: None, later_s: float
) -> None:
    datas = random_parts(8, parts=2)
    route = peer_harness.publish(*datas)
    head, second = (peer_harness.member(name) for name in "ab")
    known = prefetched(head, route, 1)
    here(head, route, 1)
    prefetched(second, route, 2)
    time.sleep(later_s)
    known.add(route.parts)
    here(second, route, 2)
    assert second.exchange.fetched == {"peer": route.size}


@pytest.mark.slow
def test_a_learner_slower_than_its_readers_makes_nobody_look_slow(peer_harness: PeerHarness) -> None:
    datas = random_parts(100, parts=4)
    members = [peer_harness.member(name, chunk_deadline_s=HASTY_S) for name in "abc"]
    route = peer_harness.publish(*datas)
    growing = [prefetched(member, route, 1) for member in members]
    for parts in (2, 3, 4):
        time.sleep(1.2)  # longer than the looks for something better are apart
        for download in growing:
            download.add(route.parts[:parts])
    took = [member.fetch(route) for member in members]
    assert sum(store for store, _ in took) == route.size
    assert [sum(both) for both in took] == [route.size] * 3


def test_what_is_given_up_leaves_no_part_and_holds_nothing(peer_harness: PeerHarness) -> None:
    route, member = peer_harness.publish(*random_parts(8, parts=3)), peer_harness.member("a")
    download = prefetched(member, route, 2)
    here(member, route, 2)
    member.exchange.drop_prefetched()
    assert download.over.is_set() and member.part_cache.bytes == 0
    download.add(route.parts)
    assert member.part_cache.bytes == 0
    assert member.fetch(route) == (route.size, 0)


def test_of_a_route_that_came_out_otherwise_the_same_parts_stay(peer_harness: PeerHarness) -> None:
    datas = random_parts(8, parts=3)
    route, member = peer_harness.publish(*datas), peer_harness.member("a")
    prefetched(member, route, 3)
    here(member, route, 3)
    other = route_of(*datas[:2])
    member.fetch(other)
    assert member.exchange.fetched["store"] == route.size, "nothing twice"
    assert member.holds(other, datas[:2]) and member.part_cache.find(route.parts[2].key) is None


def test_what_cannot_be_finished_is_fetched_again(peer_harness: PeerHarness) -> None:
    """A part whose prefetch failed because it was not stored yet is fetched once it is."""
    datas = random_parts(4, parts=2)
    route, member = route_of(*datas), peer_harness.member("a")
    download = prefetched(member, route, 1)
    assert download.over.wait(DEADLINE_S)
    peer_harness.publish(*datas)
    assert sum(member.fetch(route)) == route.size
    assert member.holds(route, datas)


def test_other_work_goes_first(peer_harness: PeerHarness) -> None:
    route, member = peer_harness.publish(*random_parts(8, parts=2)), peer_harness.member("a")
    assert member.exchange.prefetch(route.name, route.parts, DEADLINE_S)
    assert member.exchange.prefetch(route.name, route.parts, DEADLINE_S) is None, "one at a time"
    member.exchange.drop_prefetched()
    member.exchange._fetching = 1
    assert member.exchange.prefetch(route.name, route.parts, DEADLINE_S) is None
    member.exchange._fetching = 0
    member.exchange.retire()
    assert member.exchange.prefetch(route.name, route.parts, DEADLINE_S) is None


def test_what_does_not_fit_is_refused_and_leaves_nothing(peer_harness: PeerHarness) -> None:
    route, member = peer_harness.publish(*random_parts(8, parts=2)), peer_harness.member("a")
    member.part_cache.most_bytes = route.size - CHUNK
    with pytest.raises(ServiceError, match=r"weights\.cache_max_bytes"):
        member.exchange.prefetch(route.name, route.parts, DEADLINE_S)
    assert member.part_cache.bytes == 0
    download = prefetched(member, route, 1)
    with pytest.raises(ServiceError, match=r"weights\.cache_max_bytes"):
        download.add(route.parts)
    assert member.part_cache.bytes <= member.part_cache.most_bytes
