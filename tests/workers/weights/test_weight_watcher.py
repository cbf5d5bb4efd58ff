"""The watcher between a real queue and a real store: it stages published versions, and only whole ones."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import DeadlineError
from echo_queue.records import Published, Version
from echo_queue.weights import Route, Signer, read_manifest
from echo_queue.weights.reader import OlderVersion
from echo_queue.weights.reader import fetch_parts as parts_of
from learner.publication import signing_key
from tests.queue.clients import Clients
from tests.waiting import wait_until
from tests.workers.publications import holds
from tests.workers.worker_harness import WorkerHarness, tensors_of
from workers.weights.cache.caching_transport import CachingTransport, FetchedRoute
from workers.weights.cache.part_cache import PartCache
from workers.weights.cache.sources import RouteSources
from workers.weights.fetch import VersionFetcher
from workers.weights.key_pinning import KeyChanged, pin
from workers.weights.staging import Stage as HostCopy
from workers.weights.weight_watcher import Staged, WeightWatcher

torch.set_num_threads(1)
Begin = Callable[..., WorkerHarness]
Follow = Callable[..., "Following"]
Tensors = dict[str, Tensor]
DEADLINE_S = 120.0
NO_SHUTDOWN = threading.Event()


class FromStore(CachingTransport):
    """A transport that reads the store alone, at once; `asked` are the routes that were fetched."""

    def __init__(self, store: ObjectStore, part_cache: PartCache) -> None:
        super().__init__(part_cache)
        self.store, self.part_cache = store, part_cache
        self.before: Callable[[Route], object] = lambda route: None
        self.asked: list[Route] = []

    def fetch_route(self, route: Route, deadline_s: float) -> FetchedRoute:
        self.before(route)
        self.asked.append(route)
        for part, data in parts_of(self.store, route):
            file = self.part_cache.open(part)
            for index in range(len(part.chunks)):
                assert file.write(index, data[part.start(index) : part.start(index) + part.length(index)])
        return FetchedRoute({"store": route.size})

    def _sources(self, route: str, deadline_s: float, restart: bool) -> RouteSources:
        raise AssertionError("it reads the store at once")


class Following:
    """A watcher of `run`, with the store as its only source. `tensors` are those of version 0."""

    def __init__(
        self, run: WorkerHarness, directory: Path, tensors: Tensors, base: Callable[[str], Tensor] | None = None
    ) -> None:
        self.run, self.tensors = run, tensors
        self.part_cache = PartCache(directory / "part_cache" / "w1", 1 << 30)
        self.transport = FromStore(run.store, self.part_cache)
        self.copy = HostCopy()
        queue = Clients.connected_as(run.config, "worker")
        pinned = pin(run.config, queue, NO_SHUTDOWN)
        assert pinned is not None
        self.fetcher = VersionFetcher(run.store, pinned, self.copy, self.transport, DEADLINE_S, base=base)
        self.watcher = WeightWatcher(queue, self.fetcher, Version(0, 0))

    def publish(self, number: int) -> Published:
        """Publishes the tensors, of which some elements have drifted by 0.01 with each version."""
        drifted = {
            name: torch.where(tensor > 0.3, tensor + 0.01 * number, tensor) for name, tensor in self.tensors.items()
        }
        return self.run.publish(number, drifted)

    def __enter__(self) -> WeightWatcher:
        self.watcher.start()
        return self.watcher

    def __exit__(self, *error: object) -> None:
        self.watcher.close()
        self.run.queue.resume()  # an event, for which it waits
        self.watcher.join(timeout=60)
        self.part_cache.close()


@pytest.fixture
def follow(harness: Begin, folder: Path, tmp_path: Path) -> Follow:
    """Begins a run whose learner has published the model in `folder` as version 0, and makes a watcher of it."""

    def begin(base: Tensors | None = None, **settings: object) -> Following:
        run, tensors = harness(**settings), tensors_of(folder)
        run.begin(["1"], tensors)
        return Following(run, tmp_path, tensors, base.__getitem__ if base is not None else None)

    return begin


class RecordingLock:
    """A lock that keeps the timeouts of all calls of `acquire`, by thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.timeouts: dict[int, list[float]] = {}

    def acquire(self, timeout: float = -1) -> bool:
        self.timeouts.setdefault(threading.get_ident(), []).append(timeout)
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def await_waiting(self, thread: threading.Thread) -> None:
        """Returns once `thread` has asked for the lock twice from now on: the first time it did not get it."""
        assert thread.ident is not None
        asked = self.timeouts.setdefault(thread.ident, [])
        before = len(asked)
        wait_until(lambda: len(asked) >= before + 2, f"{thread.name} to wait for its turn")


def awaited(watcher: WeightWatcher, version: Version) -> Staged:
    staged = watcher.wait_for(version, DEADLINE_S, NO_SHUTDOWN)
    assert staged is not None
    return staged


def test_a_wait_for_weights_ends_with_what_it_waited_for_and_why(follow: Follow) -> None:
    def away(route: Route) -> None:
        raise OSError("no route to the store")

    following = follow()
    following.transport.before = away
    with following as watcher:
        wait_until(lambda: watcher._failure is not None, "the first failure")
        with pytest.raises(DeadlineError, match=r"version 1\.0 or newer .*no route to the store"):
            watcher.wait_for(Version(1, 0), deadline_s=0.1, shutdown=NO_SHUTDOWN)


def test_a_restarted_learners_weights_end_a_wait_for_its_forerunners(follow: Follow) -> None:
    following = follow()
    with following as watcher:
        following.run.learner_begins()
        following.publish(0)
        with awaited(watcher, Version(1, 5)) as staged:
            assert staged.version == Version(following.run.lineage, 0)


def test_each_version_costs_the_difference_to_the_one_before(follow: Follow) -> None:
    following = follow()
    with following as watcher:
        with awaited(watcher, Version(1, 0)) as staged:
            assert [route.base for route in following.transport.asked] == [None]
        published = following.publish(1)
        with awaited(watcher, Version(1, 1)) as staged:
            assert [route.base for route in following.transport.asked[1:]] == [Version(1, 0)]
            assert holds(dict(staged.tensors), staged.manifest)
            assert staged.published == published


def test_a_worker_that_missed_versions_takes_the_cheapest_path(follow: Follow) -> None:
    following = follow(weights={"anchor_every": 8, "skips": [2, 4]})
    tensors = following.tensors
    with following as watcher:
        with awaited(watcher, Version(1, 0)):
            for number in range(1, 6):
                tensors = {name: tensor + 1e-3 * (tensor > 1.5) for name, tensor in tensors.items()}
                following.run.publish(number, tensors)
        with awaited(watcher, Version(1, 5)) as staged:
            assert holds(dict(staged.tensors), staged.manifest)
    anchor, *deltas = following.transport.asked
    assert anchor.base is None and all(route.base is not None for route in deltas)
    assert len(deltas) < 5, "not each of the five"
    assert sum(route.size for route in deltas) < anchor.size


def test_the_own_base_model_spares_the_first_anchor(follow: Follow, folder: Path) -> None:
    following = follow(base=tensors_of(folder))
    following.publish(1)
    with following as watcher, awaited(watcher, Version(1, 1)) as staged:
        assert [route.base for route in following.transport.asked] == [Version(1, 0)]
        assert holds(dict(staged.tensors), staged.manifest)


def test_another_base_model_spares_nothing(follow: Follow, folder: Path) -> None:
    following = follow(base={name: tensor * 2 for name, tensor in tensors_of(folder).items()})
    following.publish(1)
    with following as watcher, awaited(watcher, Version(1, 1)) as staged:
        assert [route.base for route in following.transport.asked] == [None, Version(1, 0)]
        assert holds(dict(staged.tensors), staged.manifest)


def test_a_learner_that_begins_again_where_it_was_costs_no_bytes(follow: Follow) -> None:
    following = follow()
    with following as watcher:
        with awaited(watcher, Version(1, 0)):
            pass
        following.run.learner_begins()
        following.publish(0)
        with awaited(watcher, Version(following.run.lineage, 0)) as staged:
            assert len(following.transport.asked) == 1
            assert holds(dict(staged.tensors), staged.manifest)


def test_a_take_never_waits_for_what_is_being_staged_and_is_not_missed_twice(follow: Follow) -> None:
    following = follow()
    go, applying = threading.Event(), threading.Event()
    apply = following.copy.apply

    def slow(*what: object) -> None:
        applying.set()
        assert go.wait(DEADLINE_S)
        apply(*what)  # type: ignore[arg-type]

    following.copy.apply = slow  # type: ignore[method-assign, assignment]
    following.copy._turn = turn = RecordingLock()  # type: ignore[assignment]
    must_stay, stays = following.watcher._must_stay, list[bool]()

    def recorded() -> bool:
        stays.append(must_stay())
        return stays[-1]

    following.watcher._must_stay = recorded  # type: ignore[method-assign]
    with following as watcher:
        assert applying.wait(DEADLINE_S)
        assert watcher.take() is None
        assert turn.timeouts[threading.get_ident()] == [0]
        following.publish(1)
        go.set()
        wait_until(lambda: stays.count(True) >= 2, "the next version, which waits until what was missed is taken")
        assert len(following.transport.asked) == 2
        staged = watcher.take()
        assert staged is not None and staged.version == Version(1, 0)
        with staged:
            assert holds(dict(staged.tensors), staged.manifest)
        with awaited(watcher, Version(1, 1)) as newer:
            assert holds(dict(newer.tensors), newer.manifest)


def test_what_is_taken_stays_as_it_is_until_it_is_released(follow: Follow) -> None:
    following = follow()
    following.copy._turn = turn = RecordingLock()  # type: ignore[assignment]
    with following as watcher:
        with awaited(watcher, Version(1, 0)) as staged:
            following.publish(1)
            turn.await_waiting(watcher)
            assert len(following.transport.asked) == 2, "the next version has arrived"
            assert holds(dict(staged.tensors), staged.manifest)
        with awaited(watcher, Version(1, 1)) as newer:
            assert holds(dict(newer.tensors), newer.manifest)


def test_a_path_that_does_not_fit_into_the_cache_at_once_comes_route_by_route(follow: Follow) -> None:
    following = follow()
    published = following.publish(1)
    routes = following.fetcher._path(read_manifest(following.run.store, published, following.fetcher._pinned.verifier))
    assert len(routes) == 2
    following.part_cache.most_bytes = sum(route.size for route in routes) - 1
    with following as watcher, awaited(watcher, Version(1, 1)) as staged:
        assert holds(dict(staged.tensors), staged.manifest)
    assert following.transport.asked == list(routes), "each of them once"


def test_a_copy_that_was_damaged_comes_anew_from_an_anchor(follow: Follow) -> None:
    following = follow()
    with following as watcher:
        with awaited(watcher, Version(1, 0)) as staged:
            next(iter(staged.tensors.values())).view(-1)[0] += 1
        following.publish(1)
        with awaited(watcher, Version(1, 1)) as staged:
            assert holds(dict(staged.tensors), staged.manifest)
    first, delta, anchor, *more = (route.base for route in following.transport.asked)
    assert (first, delta, anchor) == (None, Version(1, 0), None)
    assert more in ([Version(1, 0)], []), "the anchor is of version 0, or of version 1, which is stored a little later"


def test_a_rebuild_forgets_what_is_here(follow: Follow, folder: Path) -> None:
    following = follow(base=tensors_of(folder))
    with following as watcher:
        with awaited(watcher, Version(1, 0)):
            assert following.transport.asked == []
        anew = watcher.rebuild(Version(1, 0), DEADLINE_S, NO_SHUTDOWN)
        assert anew is not None
        with anew:
            assert [route.base for route in following.transport.asked] == [None]
            assert holds(dict(anew.tensors), anew.manifest)


def test_a_rebuild_does_not_wait_for_ever_for_its_turn(follow: Follow) -> None:
    following = follow()
    with following as watcher, awaited(watcher, Version(1, 0)):
        with pytest.raises(DeadlineError, match=r"version 1\.0 or newer did not arrive within 0 s"):
            watcher.rebuild(Version(1, 0), 0.3, NO_SHUTDOWN)
        shutdown = threading.Event()
        shutdown.set()
        assert watcher.rebuild(Version(1, 0), DEADLINE_S, shutdown) is None


def test_weights_signed_by_another_key_are_never_staged_and_end_the_worker(follow: Follow) -> None:
    following = follow()
    with following as watcher:
        with awaited(watcher, Version(1, 0)):
            pass
        following.run.signer = Signer.generate()
        following.run.learner_begins()
        following.publish(1)
        with pytest.raises(KeyChanged, match="start the worker again"):
            watcher.wait_for(Version(2, 1), DEADLINE_S, NO_SHUTDOWN)
        with pytest.raises(KeyChanged):
            watcher.check()
        assert watcher.take() is None and len(following.transport.asked) == 1


def test_a_pinned_key_in_the_configuration_is_not_replaced_by_redis(harness: Begin, folder: Path) -> None:
    own = Signer.generate()
    run = harness(weights={"public_key": own.public_key})
    run.begin(["1"], tensors_of(folder))
    queue = Clients.connected_as(run.config, "worker")
    with pytest.raises(KeyChanged, match=r"weights\.public_key"):
        pin(run.config, queue, NO_SHUTDOWN)
    run.signer = own
    run.learner_begins()
    pinned = pin(run.config, queue, NO_SHUTDOWN)
    assert pinned is not None and pinned.keys == signing_key.run_keys(own)


def test_a_worker_that_no_learner_tells_whom_to_trust_says_so(harness: Begin) -> None:
    run = harness(queue={"stall_deadline_s": 0.5, "lease_s": 1.0})
    with pytest.raises(DeadlineError, match="start the learner"):
        pin(run.config, Clients.connected_as(run.config, "worker"), NO_SHUTDOWN)


@pytest.mark.slow
def test_an_old_pointer_that_redis_names_again_takes_no_worker_back(follow: Follow) -> None:
    """Somebody who may write to Redis sets the pointer back to a version whose objects are still stored."""
    following = follow()
    run, old = following.run, following.publish(1)
    with following as watcher:
        newest = following.publish(2)
        with awaited(watcher, Version(1, 2)):
            pass
        asked = len(following.transport.asked)
        pointer = {"number": old.version.number, "manifest": old.manifest, "digest": old.digest}
        run.queue.client.hset(run.queue.keys.published, mapping=pointer)
        wait_until(lambda: isinstance(watcher._failure, OlderVersion), "the old pointer to be refused")
        assert not watcher.staged and following.copy.have is not None
        assert following.copy.have[0] == newest.version and len(following.transport.asked) == asked
        with awaited(watcher, following.publish(4).version) as staged:
            assert holds(dict(staged.tensors), staged.manifest)


def test_what_another_version_points_to_is_not_staged(follow: Follow) -> None:
    following = follow()
    run, first = following.run, following.publish(1)
    verifier = following.fetcher._pinned.verifier
    assert read_manifest(run.store, first, verifier).version == Version(1, 1)
    run.queue.publish(run.lineage, Published(Version(run.lineage, 2), first.manifest, first.digest))
    with following as watcher:
        wait_until(lambda: watcher._failure is not None, "the manifest to be refused")
        with pytest.raises(DeadlineError, match="cannot be"):
            watcher.wait_for(Version(1, 2), deadline_s=0.1, shutdown=NO_SHUTDOWN)


def test_who_holds_the_stage_waits_for_nobody_and_keeps_applies_out() -> None:
    stage = HostCopy()
    stage._turn = turn = RecordingLock()  # type: ignore[assignment]
    assert stage.hold() and not stage.hold()
    turns: list[bool] = []
    applying = threading.Thread(target=lambda: turns.append(stage.wait_turn(lambda: True)), daemon=True)
    applying.start()
    turn.await_waiting(applying)
    assert applying.is_alive() and not turns
    stage.release()
    applying.join(timeout=DEADLINE_S)
    assert turns == [True] and not stage.hold()
    assert not stage.wait_turn(lambda: False), "what is not wanted any more does not wait"
