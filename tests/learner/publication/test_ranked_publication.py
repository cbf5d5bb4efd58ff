"""Several ranks publish what one process publishes: the same objects, byte for byte, and the same announcements."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed import tensor as sharded
from torch.distributed.device_mesh import DeviceMesh

from echo_queue.config import Config, Weights
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError, Problem, ServiceError
from echo_queue.records import Version
from echo_queue.weights import Signer, WeightPublisher
from echo_queue.weights.layout import Layout, Share
from echo_queue.weights.part_makers import PartMaker
from learner.model.loading import prepare
from learner.model.policy import Policy
from learner.publication.part_thread import PartThread
from learner.publication.publish_thread import Snapshot
from learner.publication.ranked_makers import RankedMakers
from learner.publication.snapshot import take_share
from learner.ranks.team import RankLostError, Team
from tests.learner.rank_processes import run_ranks
from tests.learner.synthetic import tiny_model
from tests.servers.s3 import server_of
from tests.waiting import wait_until

RUN, VERSIONS, PART_BYTES, DEADLINE_S = "run", 5, 20_000, 20.0
SHAPES = {
    "rows that do not divide": (7, 33),
    "fewer rows than ranks": (2, 5_000),
    "a vector": (12_345,),
    "one": (1,),
    "two pieces, which end within a row": (1_499, 1_999),
}
WEIGHTS = {"part_bytes": PART_BYTES, "chunk_bytes": 4_096, "anchor_every": 3, "skips": [2], "encrypt": True}
SIGNER, CHUNK_KEY = Signer(bytes(32)), bytes(range(32))


def config(folder: Path) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "run", "dir": folder},
            "model": {"base": str(folder)},
            # Several parts; an anchor, and a delta over two publications, beside the versions' own.
            "weights": WEIGHTS,
        }
    )


class Learner:
    """The weights of a tiny model with tied embeddings and of odd shapes, on all ranks, which publish them."""

    def __init__(self, team: Team, folder: Path, store: ObjectStore, *, on_host: bool = False) -> None:
        self.team, self._config, self._on_host = team, config(folder), on_host
        self._policy = Policy(prepare(tiny_model()), self._config.learner, torch.bfloat16, team)
        self._mesh = DeviceMesh.from_group(distributed.group.WORLD, "cpu") if team.size > 1 else None  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(0)
        self._odd = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
        self.announced: list[Any] = []
        self._shares: list[weakref.ref[Share]] = []
        weights = self._config.weights
        own = PartMaker(store, weights, chunk_key=CHUNK_KEY, threads=2)
        self._parts = PartThread(self._config, store, team)
        if team.first:
            makers = RankedMakers(team, own, DEADLINE_S, CHUNK_KEY) if team.size > 1 else own
            self._makers = makers
            self._publisher = WeightPublisher(
                store, "run", SIGNER, weights, makers=makers, announce=lambda one, _: self.announced.append(one)
            )
        else:
            self._parts.start()

    def weights(self) -> dict[str, Tensor]:
        """This rank's rows of the weights."""
        odd, mesh = self._odd, self._mesh
        if mesh is not None:
            rows = [sharded.Shard(0)]
            odd = {name: sharded.distribute_tensor(tensor, mesh, rows) for name, tensor in odd.items()}  # type: ignore[misc]
        return self._policy.published() | odd | {"whole on every rank": torch.arange(9)}

    def publish(self, number: int) -> None:
        snapshot = Snapshot.now(
            Version(1, number),
            take_share(
                self.weights(), torch.bfloat16, self.team, self._config.weights.part_bytes, on_host=self._on_host
            ),
        )
        self._shares.append(weakref.ref(snapshot.share))
        if self.team.first:
            self._publisher.publish_share(snapshot.version, snapshot.share)
            self._publisher.further(snapshot.version)
        else:
            self._parts.hand_over(snapshot)

    def held(self) -> list[Share]:
        """The shares of this rank that are still in memory."""
        return [share for made in self._shares if (share := made()) is not None]

    @torch.no_grad()
    def drift(self) -> None:
        """Moves every twentieth element of the odd tensors on all ranks, and every row of the model a little."""
        for tensor in self._odd.values():
            tensor.view(-1)[::20] += 1e-2
        for master in self._policy.masters.values():
            master.mul_(1.0005)

    def close(self) -> None:
        if self.team.first:
            self._makers.close()
        else:
            self._parts.close()
            self._parts.check()


class Published(NamedTuple):
    """The announcements of rank 0, and the bytes of the weights that this rank holds once all is published."""

    announced: list[Any]
    held: int


def publish_all(team: Team, folder: Path, endpoint: StoreEndpoint, on_host: bool = False) -> Published:
    learner = Learner(team, folder, ObjectStore(endpoint, RUN), on_host=on_host)
    for number in range(VERSIONS):
        learner.publish(number)
        learner.drift()
    wait_until(lambda: len(learner.held()) == 1, "the last version, with which all that came before is let go")
    (share,) = learner.held()
    team.report("all is published", b"")
    if team.first:
        team.reports("all is published", DEADLINE_S)
    learner.close()
    return Published(learner.announced, sum(row.nbytes for row in share.rows.values()))


def contents(store: ObjectStore) -> dict[str, bytes]:
    return {one.key: store.get(one.key) for one in store.list()}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreEndpoint]:
    server = server_of("rclone", tmp_path_factory.mktemp("store"))
    server.start()
    ObjectStore(server.endpoint("ranks"), RUN).create_bucket()
    yield server.endpoint("ranks")
    server.stop()


@pytest.mark.slow
def test_any_number_of_ranks_stores_the_same_bytes(endpoint: StoreEndpoint, tmp_path: Path) -> None:
    """… also where objects are there already, as after a restart: documents are put once, so others are refused."""
    store = ObjectStore(endpoint, RUN)
    announced, held = publish_all(Team.alone(), tmp_path, endpoint)
    alone = contents(store)
    assert sum(key.endswith("route.json") for key in alone) > 2
    assert len(announced) > 10
    store.delete(sorted(alone))
    assert publish_all(Team.alone(), tmp_path, endpoint, on_host=True) == (announced, held)
    assert contents(store) == alone
    for size, on_host in ((2, True), (3, False)):
        store.delete(sorted(alone))
        found = run_ranks(size, publish_all, tmp_path, endpoint, on_host)
        assert contents(store) == alone, size
        assert found[0].announced == announced
        assert sum(one.held for one in found) == held, "each byte is held once"
        assert all(one.held < held for one in found)
    run_ranks(2, publish_all, tmp_path, endpoint)
    assert contents(store) == alone


def fail_on_rank_1(team: Team, folder: Path, endpoint: StoreEndpoint) -> str:
    """The store refuses the parts of the second version to rank 1. Returns the error of each rank."""
    store = ObjectStore(endpoint, RUN)
    learner = Learner(team, folder, store)
    learner.publish(0)
    learner.drift()
    put = store.put

    def full(key: str, data: bytes, once: bool = False) -> bool:
        if "/00000001/" in key:
            raise ServiceError(Problem("store", "is full", "make room"))
        return put(key, data, once)

    if team.rank == 1:
        store.put = full  # type: ignore[method-assign]
    try:
        learner.publish(1)
        learner.close()
    except EchoQueueError as error:
        if team.first:
            learner.close()
        return str(error)
    return ""


@pytest.mark.slow
def test_a_rank_whose_upload_fails_is_named_and_nothing_is_published(endpoint: StoreEndpoint, tmp_path: Path) -> None:
    store = ObjectStore(endpoint, RUN)
    store.delete([one.key for one in store.list()])
    told = run_ranks(2, fail_on_rank_1, tmp_path, endpoint)
    assert told[0].startswith(
        "learner rank 1: could not store part 1 of 0001.00000001/from-0001.00000000: store: is full"
    )
    assert "make room" in told[0]
    assert told[1].startswith("store: is full")
    assert [key for key in contents(store) if key.endswith("manifest.json")] == ["weights/0001/00000000/manifest.json"]


def silent(team: Team, folder: Path, endpoint: StoreEndpoint) -> str:
    """Rank 1 hands nothing over."""
    if team.rank == 1:
        return ""
    makers = RankedMakers(team, PartMaker(ObjectStore(endpoint, RUN), Weights(chunk_bytes=4_096)), 0.2, None)
    publisher = WeightPublisher(ObjectStore(endpoint, RUN), "run", SIGNER, config(folder).weights, makers=makers)
    with pytest.raises(RankLostError) as error:
        publisher.publish(Version(1, 0), {"a": torch.zeros(9_000), "b": torch.ones(9_000)}, "float32")
    return str(error.value)


@pytest.mark.slow
def test_a_rank_that_stays_silent_is_named_at_the_deadline(endpoint: StoreEndpoint, tmp_path: Path) -> None:
    assert run_ranks(2, silent, tmp_path, endpoint)[0].startswith("learner rank 1: did not report on publication")


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_part_has_one_owner_and_shares_are_alike(ranks: int) -> None:
    shapes = {f"w{number}": torch.empty(number, 1_000, device="meta") for number in range(40)}
    layout = Layout.of(shapes, {}, 20_000)
    places = [layout.places(rank, ranks) for rank in range(ranks)]
    assert sorted(place for mine in places for place in mine) == list(range(len(layout.parts)))
    assert all(layout.owner(place, ranks) == rank for rank, mine in enumerate(places) for place in mine)
    assert max(map(len, places)) - min(map(len, places)) <= 1
