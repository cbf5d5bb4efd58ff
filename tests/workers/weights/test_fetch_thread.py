"""The fetch thread: one for all requests, and all parts of a path are held until the last one is whole."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Version
from echo_queue.weights.manifest import Part, Route
from tests.waiting import wait_until
from tests.workers.weights.peer_harness import part_of, random_parts
from workers.weights.cache.fetch_thread import FetchThread, PendingPart
from workers.weights.cache.part_cache import PartCache

WAIT_S = 120.0
SIZE = len(random_parts(2)[0])


class FetchThreadHarness:
    """Numbered routes of one part each; each is fetched once the test allows it."""

    def __init__(self, folder: Path) -> None:
        self.part_cache = PartCache(folder / "w1", 3 * SIZE)
        self.datas = [random_parts(2)[0] for _ in range(5)]
        self.routes = [_route(number, data) for number, data in enumerate(self.datas)]
        self.may = [threading.Event() for _ in self.datas]
        self.fetched: list[int] = []
        self.threads: set[int] = set()
        self.fetch_thread = FetchThread(self._fetch, self.part_cache)

    def start(self, *numbers: int) -> list[PendingPart]:
        return list(self.fetch_thread.start([self.routes[number] for number in numbers], WAIT_S).values())

    def _fetch(self, route: Route, deadline_s: float) -> None:
        number = self.routes.index(route)
        self.fetched.append(number)
        self.threads.add(threading.get_ident())
        assert self.may[number].wait(WAIT_S)
        (part,) = route.parts
        file, data = self.part_cache.open(part), self.datas[number]
        for index in range(len(part.chunks)):
            assert file.write(index, data[part.start(index) : part.start(index) + part.length(index)])


def _route(number: int, data: bytes) -> Route:
    part = part_of(data)
    part = Part(part.key.replace("00000007", f"{number:08}"), part.size, part.chunk_bytes, part.chunks)
    return Route("run", Version(1, number), None, "0" * 64, None, (part,))


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[FetchThreadHarness]:
    harness = FetchThreadHarness(tmp_path)
    yield harness
    for may in harness.may:
        may.set()
    wait_until(lambda: not running(), "the fetch's end")
    harness.part_cache.close()


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fetch"]


def test_who_tries_again_and_again_joins_what_is_on_its_way(harness: FetchThreadHarness) -> None:
    tries = [harness.start(0, 1) for _ in range(20)]
    wait_until(lambda: harness.fetched == [0], "the first fetch")
    assert len(running()) == 1
    for number in (0, 1):
        harness.may[number].set()
    for parts in tries:
        assert [part.memory() for part in parts] == harness.datas[:2]
    wait_until(lambda: not running(), "the fetch's end")
    assert harness.fetched == [0, 1]


def test_of_several_paths_only_the_last_waits_and_one_thread_fetches(harness: FetchThreadHarness) -> None:
    first, after = harness.start(0, 1)
    wait_until(lambda: harness.fetched == [0], "the first fetch")
    (superseded,), last = harness.start(2), harness.start(0)
    assert len(running()) == 1
    with pytest.raises(ServiceError, match="another path was requested"):
        superseded.memory()
    harness.may[0].set()
    assert first.memory() == last[0].memory() == harness.datas[0]
    with pytest.raises(ServiceError, match="another path was requested"):
        after.memory()
    wait_until(lambda: not running(), "the fetch's end")
    assert harness.fetched == [0, 0] and len(harness.threads) == 1


def test_what_failed_is_told_and_begun_anew(harness: FetchThreadHarness) -> None:
    def fail(route: Route, deadline_s: float) -> None:
        raise ServiceError(Problem("weights", "nobody has it", "wait"))

    fetch_thread = FetchThread(fail, harness.part_cache)
    for _ in range(3):
        with pytest.raises(ServiceError, match="nobody has it"):
            fetch_thread.start(harness.routes[:1], WAIT_S)[harness.routes[0].parts[0].key].memory()
        wait_until(lambda: not running(), "the fetch's end")
    assert harness.part_cache.bytes == SIZE
    harness.part_cache.most_bytes = SIZE
    harness.part_cache.open(harness.routes[1].parts[0])
    assert harness.part_cache.find(harness.routes[0].parts[0].key) is None, "it is not held any more"


def test_no_route_of_a_path_makes_room_for_another_of_it(harness: FetchThreadHarness) -> None:
    with pytest.raises(ServiceError, match=r"weights\.cache_max_bytes"):
        harness.start(0, 1, 2, 3)
    for may in harness.may:
        may.set()
    parts = harness.start(1, 2, 3)
    with pytest.raises(ServiceError, match=r"weights\.cache_max_bytes"), harness.part_cache.hold(*harness.routes[1:4]):
        harness.part_cache.open(harness.routes[4].parts[0])
    assert [part.memory() for part in parts] == harness.datas[1:4]
