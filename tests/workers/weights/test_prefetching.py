"""Prefetching, with real publishers and stores: early, shared, never trusted too much, and dropped when in vain."""

import itertools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch

from echo_queue import failpoints
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Published, Version
from echo_queue.weights import Announcement, Manifest, Route, WeightPublisher, read_manifest
from tests.servers.s3 import BUCKET
from tests.waiting import wait_until
from tests.weights.published_weights import OTHER, SIGNER, VERIFIER, history, weight_publisher
from tests.workers.publications import holds
from tests.workers.weights.conftest import Servers
from tests.workers.weights.peer_harness import PeerHarness, part_of, random_parts
from tests.workers.weights.reader import Reader
from workers.weights import weight_watcher
from workers.weights.cache import caching_transport

WAIT_S = 120.0
ROOT = Path(__file__).parents[3]


class HeldStore(ObjectStore):
    """The store as a learner sees it, in which some objects are held up before they are stored."""

    def __init__(self, endpoint: StoreEndpoint, run: str) -> None:
        super().__init__(endpoint, run)
        self.waits: Callable[[str], bool] = lambda key: False
        self.held = threading.Event()
        """Set while an object is held up."""
        self.open = threading.Event()

    def put(self, key: str, data: Any, once: bool = False) -> bool:
        if self.waits(key):
            self.held.set()
            assert self.open.wait(WAIT_S)
        return super().put(key, data, once)


class Learner:
    """Publishes versions of one lineage; its store stops it where the test wants."""

    def __init__(self, peer_harness: PeerHarness, **settings: Any) -> None:
        self.queue, self.store = peer_harness.queue, peer_harness.store
        self.lineage = peer_harness.queue.resume().lineage
        self.held_store = HeldStore(peer_harness.store.endpoint, peer_harness.queue.run)
        self.weight_publisher: WeightPublisher = weight_publisher(self.held_store, announce=self._announce, **settings)
        self._threads: list[threading.Thread] = []

    def publish(self, number: int, tensors: dict[str, torch.Tensor]) -> Published:
        published = self.weight_publisher.publish(Version(self.lineage, number), tensors, "float32")
        self.queue.publish(self.lineage, published)
        return published

    def begin(self, number: int, tensors: dict[str, torch.Tensor], until: Callable[[str], bool]) -> None:
        """Publishes in the background, up to the first object for which `until` returns True."""
        self.held_store.waits = until
        self.held_store.held.clear()
        self.held_store.open.clear()
        self._threads.append(threading.Thread(target=self.publish, args=(number, tensors), daemon=True))
        self._threads[-1].start()

    def go_on(self) -> Published:
        self.held_store.open.set()
        self._threads[-1].join(WAIT_S)
        published = self.queue.published()
        assert published is not None
        return published

    def close(self) -> None:
        self.held_store.open.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _announce(self, announcement: Announcement, document: bytes) -> None:
        version = announcement.version
        self.queue.announce(self.lineage, version, announcement.route, announcement.place, document)


def manifests(key: str) -> bool:
    return key.endswith("manifest.json")


def from_the(words: str, number: int) -> Callable[[str], bool]:
    """Returns a condition that holds from the `number`-th object on, counted from 1, whose key has `words`."""
    count = itertools.count(1)
    return lambda key: words in key and next(count) >= number


class PrefetchHarness:
    def __init__(self, peer_harness: PeerHarness, ends: ExitStack) -> None:
        self.peer_harness, self._ends = peer_harness, ends
        self.versions = history(3)
        self.learner = Learner(peer_harness)
        ends.callback(self.learner.close)

    def reader(self, name: str, prefetch_s: float = WAIT_S, **settings: Any) -> Reader:
        member = self.peer_harness.member(name, **settings)
        reader = Reader(member, self.peer_harness.queue, self.peer_harness.store, SIGNER.public_key, prefetch_s)
        self._ends.callback(reader.close)
        return reader

    def begin(self, *names: str) -> list[Reader]:
        """Publishes version 0, which these readers stage."""
        self.learner.publish(0, self.versions[0])
        readers = [self.reader(name) for name in names]
        for reader in readers:
            self.arrived(reader, Version(1, 0))
            counted(reader, self.manifest().route.size)
        return readers

    def arrived(self, reader: Reader, version: Version) -> None:
        wait_until(lambda: reader.version == version, f"version {version}")
        assert holds(reader.stage.tensors, self.manifest())

    def manifest(self) -> Manifest:
        published = self.peer_harness.queue.published()
        assert published is not None
        return read_manifest(self.peer_harness.store, published, VERIFIER)

    def announced(self) -> Route:
        """Returns the announcements in Redis as a route, whose root is not known yet."""
        announced = self.peer_harness.queue.latest_weights().announced
        assert announced is not None
        documents = self.peer_harness.queue.announced_parts(announced, 0).values()
        told = [Announcement.decode(VERIFIER.open(document, "told"), "told") for document in documents]
        parts = tuple(one.part for one in told)
        return Route(told[0].run, told[0].version, told[0].base, "", told[0].base_root, parts)

    def announce(self, announcement: Announcement, route: str = "", signer: Any = SIGNER, cut: int = 0) -> None:
        """Announces a part by hand, under the name `route` if that is given."""
        document = signer.sign(announcement.encode())
        version, route = announcement.version, route or announcement.route
        self.peer_harness.queue.announce(1, version, route, 0, document[: len(document) - cut])


@pytest.fixture
def harness(
    peer_harness: PeerHarness, patient_sources: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PrefetchHarness]:
    monkeypatch.setattr(weight_watcher, "LISTEN_S", 0.1)
    with ExitStack() as ends:
        yield PrefetchHarness(peer_harness, ends)


def has(reader: Reader, route: Route) -> bool:
    return all((file := reader.part_cache.find(part.key)) is not None and file.whole for part in route.parts)


def fetched(reader: Reader) -> int:
    return sum(reader.exchange.fetched.values())


def counted(reader: Reader, total: int) -> None:
    """Returns once the reader has counted so many bytes: the last ones are counted after they are there."""
    wait_until(lambda: fetched(reader) >= total, f"the count of {total} bytes")
    assert fetched(reader) == total, "each byte once"


def looked_again(reader: Reader) -> None:
    """Returns once the reader has acted on what is announced now: of two looks, the second begins after this call."""
    before = reader.looks
    wait_until(lambda: reader.looks >= before + 2, "two looks at the announcement")


def test_parts_are_here_before_their_version_stands_and_are_not_applied_before(harness: PrefetchHarness) -> None:
    (reader,) = harness.begin("a")
    before = fetched(reader)
    harness.learner.begin(1, harness.versions[1], until=manifests)
    stored = stored_parts(harness, 1)
    route = harness.announced()
    assert sorted(part.key for part in route.parts) == stored
    assert len(route.parts) > 1
    wait_until(lambda: has(reader, route), "all parts")
    assert reader.version == Version(1, 0) and holds(reader.stage.tensors, harness.manifest())
    harness.learner.go_on()
    harness.arrived(reader, Version(1, 1))
    counted(reader, before + route.size)
    assert route.size == harness.manifest().route.size


def stored_parts(harness: PrefetchHarness, number: int) -> list[str]:
    """Returns a version's parts in the store, once the learner waits with the manifest that follows them."""
    assert harness.learner.held_store.held.wait(WAIT_S)
    return [one.key for one in harness.peer_harness.store.list(f"weights/0001/{number:08d}/")]


def test_workers_share_what_they_prefetch_and_read_the_store_once(harness: PrefetchHarness) -> None:
    readers = harness.begin(*"abc")
    before = [reader.exchange.fetched.copy() for reader in readers]
    harness.learner.begin(1, harness.versions[1], until=manifests)
    stored_parts(harness, 1)
    route = harness.announced()
    for reader in readers:
        wait_until(lambda reader=reader: has(reader, route), "all parts")  # type: ignore[misc]
    harness.learner.go_on()
    for reader in readers:
        harness.arrived(reader, Version(1, 1))
    took = []
    for reader, was in zip(readers, before, strict=True):
        counted(reader, sum(was.values()) + route.size)
        took.append(reader.exchange.fetched - was)
    assert sum(one["store"] for one in took) == route.size


def test_a_difference_given_up_makes_room_for_the_anchor(harness: PrefetchHarness) -> None:
    """Two routes that do not fit into this part cache together."""
    noise = [{f"w{place}": torch.randn(9_000) for place in range(6)} for _ in range(2)]
    harness.learner.publish(0, noise[0])
    reader = harness.reader("a")
    harness.arrived(reader, Version(1, 0))
    anchor = harness.manifest().route
    reader.part_cache.most_bytes = anchor.size + anchor.size // 4
    harness.learner.begin(1, noise[1], until=from_the("/from-", 4))  # before it finds that the difference is too large
    wait_until(
        lambda: "from" in str(reader.prefetcher._route) and fetched(reader) > anchor.size, "parts of the difference"
    )
    harness.learner.go_on()
    harness.arrived(reader, Version(1, 1))
    assert harness.manifest().route.base is None
    wait_until(lambda: not any("from-" in key for key in reader.part_cache._parts), "the difference's end")


def test_a_manifest_with_other_parts_is_what_counts(harness: PrefetchHarness) -> None:
    (reader,) = harness.begin("a")
    lie = forged_part(harness)
    harness.announce(lie)
    wait_until(lambda: has(reader, route_with(lie)), "what was announced")
    harness.learner.publish(1, harness.versions[1])
    harness.arrived(reader, Version(1, 1))
    assert reader.part_cache.find(lie.part.key) is None, "its room is free again"


def route_with(announcement: Announcement) -> Route:
    return Route(announcement.run, announcement.version, announcement.base, "", "", (announcement.part,))


def forged_part(harness: PrefetchHarness) -> Announcement:
    """Returns an announcement of version 1 with another part than the learner's, which is in the store."""
    (data,) = random_parts(3)
    root = harness.manifest().root
    part, version, base = part_of(data), Version(1, 1), Version(1, 0)
    key = part.key.replace("0001/00000007/full", "0001/00000001/from-0001.00000000")
    harness.peer_harness.store.put(key, data)
    return Announcement(harness.peer_harness.queue.run, version, base, root, 0, replace(part, key=key))


LIES: dict[str, Callable[[PrefetchHarness, Announcement], None]] = {
    "signed by another key": lambda harness, told: harness.announce(told, signer=OTHER),
    "torn": lambda harness, told: harness.announce(told, cut=5),
    "of another run": lambda harness, told: harness.announce(replace(told, run="other")),
    "of another place": lambda harness, told: harness.announce(replace(told, place=1)),
    "of another route": lambda harness, told: harness.announce(told, route="0001.00000001/full"),
    "of other weights": lambda harness, told: harness.announce(replace(told, base_root="ab" * 32)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_ignored_with_one_warning(
    harness: PrefetchHarness, lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    (reader,) = harness.begin("a")
    before, told = fetched(reader), forged_part(harness)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            LIES[lie](harness, told)
            looked_again(reader)
        wait_until(lambda: any("is not prefetched" in record.message for record in caplog.records), "a warning")
        harness.peer_harness.queue.client.hset(harness.peer_harness.queue.keys.coming, "last", 0)
        looked_again(reader)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert fetched(reader) == before and reader.part_cache.find(told.part.key) is None
    harness.learner.publish(1, harness.versions[1])
    harness.arrived(reader, Version(1, 1))


def test_what_is_not_for_this_worker_is_neither_read_nor_a_lie(
    harness: PrefetchHarness, caplog: pytest.LogCaptureFixture
) -> None:
    (reader,) = harness.begin("a")
    before, told = fetched(reader), forged_part(harness)
    harness.announce(replace(told, version=Version(1, 3), base=Version(1, 2)))
    looked_again(reader)
    assert fetched(reader) == before and reader.part_cache.find(told.part.key) is None and not caplog.records


def test_what_is_announced_no_further_leaves_the_cache(harness: PrefetchHarness) -> None:
    """A learner hangs: no other resumes, and the pointer does not move."""
    harness.learner.publish(0, harness.versions[0])
    reader = harness.reader("a", prefetch_s=1.0)
    harness.arrived(reader, Version(1, 0))
    before, told = harness.manifest().route.size, forged_part(harness)
    harness.announce(told)
    wait_until(lambda: fetched(reader) == before + told.part.size, "what was announced")
    wait_until(lambda: reader.part_cache.find(told.part.key) is None, "its end")
    took = fetched(reader)
    looked_again(reader)
    assert fetched(reader) == took and reader.part_cache.find(told.part.key) is None, "it is not begun again"


def test_who_ends_while_it_waits_for_more_ends_at_once(
    harness: PrefetchHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching_transport, "LINGER_S", 600.0)  # longer than any test may take
    harness.learner.publish(0, harness.versions[0])
    reader = harness.reader("a", prefetch_s=600.0)
    harness.arrived(reader, Version(1, 0))
    told = forged_part(harness)
    harness.announce(told)
    wait_until(lambda: has(reader, route_with(told)), "what was announced")
    reader.exchange.close()
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "prefetch"], "the thread's end")


# Killed for real ------------------------------------------------------------------------------------------------------


def spec_of(servers: Servers, peer_harness: PeerHarness, **more: Any) -> str:
    place = {key: value for key, value in asdict(servers.store.endpoint(BUCKET)).items() if key != "directory"}
    spec = {"run": peer_harness.queue.run, "redis_port": servers.redis.port, "store": place} | more
    return orjson.dumps(spec).decode()


def started(module: str, spec: str, ends: ExitStack, **environ: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", f"tests.workers.weights.{module}", spec]
    environment = os.environ | environ
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    ends.callback(process.wait, WAIT_S)
    ends.callback(process.kill)
    return process


def said(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return
    raise AssertionError(f"it ended without {word}")


@pytest.mark.slow
def test_a_learner_killed_in_the_middle_of_an_upload_costs_bytes_only(
    servers: Servers, harness: PrefetchHarness
) -> None:
    with ExitStack() as ends:
        learner = started(
            "uploader", spec_of(servers, harness.peer_harness), ends, **{failpoints.VARIABLE: "announce#2"}
        )
        said(learner, "published 0")
        reader = harness.reader("a")
        harness.arrived(reader, Version(1, 0))
        assert learner.stdin is not None
        learner.stdin.write("\n")
        learner.stdin.flush()
        assert learner.wait(WAIT_S) == failpoints.CRASHED
    route = harness.announced()
    assert len(route.parts) == 2
    wait_until(lambda: has(reader, route), "two parts")
    assert reader.version == Version(1, 0)
    again = Learner(harness.peer_harness)
    assert again.lineage == 2
    wait_until(lambda: not any(reader.part_cache.find(part.key) for part in route.parts), "their end")
    again.publish(0, harness.versions[0])
    again.publish(1, harness.versions[1])
    harness.arrived(reader, Version(2, 1))


@pytest.mark.slow
def test_a_prefetching_worker_that_is_killed_is_left_by_those_behind_it(
    servers: Servers, harness: PrefetchHarness
) -> None:
    harness.learner.publish(0, harness.versions[0])
    with ExitStack() as ends:
        settings = {"chunk_deadline_s": 0.6, "peer_host": "127.0.0.1", "upload_mbit": 2.0}
        spec = spec_of(
            *(servers, harness.peer_harness),
            name="head",
            folder=str(harness.peer_harness.folder),
            public_key=SIGNER.public_key,
            settings=settings,
            enough=1,
        )
        head = started("reader", spec, ends)
        said(head, "follows")
        reader = harness.reader("b")
        harness.arrived(reader, Version(1, 0))
        harness.learner.begin(1, harness.versions[1], until=manifests)
        said(head, "prefetched")
        head.kill()
        route = harness.manifest().route
        assert route.version == Version(1, 0)
        stored_parts(harness, 1)
        wait_until(lambda: has(reader, harness.announced()), "all parts")
        harness.learner.go_on()
        harness.arrived(reader, Version(1, 1))
