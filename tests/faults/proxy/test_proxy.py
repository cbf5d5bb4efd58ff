"""A fault of single requests, by the network or a server, ends in the usual answers or in one clear error in time."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import torch
from _pytest.mark import ParameterSet
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue import weights
from echo_queue.config import Weights
from echo_queue.connections import redis_errors, retries
from echo_queue.connections.storage import client as store_client
from echo_queue.connections.storage import object_store as store_module
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError, SetBackError
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import library
from echo_queue.records import Version
from learner.recovery import checkpoint
from learner.recovery.manifest import CheckpointManifest
from tests.faults.proxy import http1, proxy, resp
from tests.faults.proxy.every_move import every_move
from tests.faults.proxy.proxy import Always, Fault, Next, OfEach, Proxy, Request
from tests.learner.recovery.one_process import newest, save
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.servers.s3 import BUCKET, Server

SILENCE_S, REDIS_SILENCE_S = 0.3, 0.1
"""The deadlines of these tests' clients for an answer of the store and of Redis."""
NEVER_CALLED = {"confirm"}
"""The functions that are called only if moves wait for replicas. `test_replicas` calls them."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between tries, short patience with a silent server."""
    monkeypatch.setattr(retries, "FIRST_PAUSE_S", 0.002)
    monkeypatch.setattr(store_module, "FIRST_PAUSE_S", 0.002)
    monkeypatch.setattr(store_client, "READ_TIMEOUT_S", SILENCE_S)


def never_passing(faults: Sequence[Fault]) -> list[Fault]:
    """Returns the faults that spoil a request for good if they meet each of its tries."""
    return [fault for fault in faults if fault not in proxy.PASSES]


def one_by_one(fault: Fault) -> ParameterSet:
    """Slow is what every request has to be silent for, one after another."""
    return pytest.param(fault, id=fault.name, marks=[pytest.mark.slow] if fault in proxy.HANGING else [])


def client_of(port: int, timeout_s: float) -> "redis.Redis":
    return redis.Redis(port=port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=timeout_s)


# Redis ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def before_redis(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(resp.Resp(), redis_server.port) as before:
        yield before


REDIS_FAULTS = (*proxy.QUICK, *proxy.HANGING, *resp.REFUSALS, resp.NO_FUNCTION)


@pytest.mark.parametrize("fault", [one_by_one(fault) for fault in REDIS_FAULTS])
def test_every_move_survives_every_fault(fault: Fault, queue: Clients, before_redis: Proxy) -> None:
    seen: set[str] = set()
    times = 1 if fault in (*proxy.PASSES, *proxy.HANGING, resp.NO_FUNCTION) else 2

    def meet(move: Callable[[], Any]) -> Any:
        met = Next(fault, times, resp.a_move)

        def choose(request: Request) -> Fault | None:
            seen.add(request.about)
            return met(request)

        before_redis.choose = choose
        answer = move()
        assert met.left == 0
        if queue.client.exists(queue.keys.rules):
            assert queue.audit().ok, queue.audit()
        return answer

    timeout_s = REDIS_SILENCE_S if fault in proxy.HANGING else 5.0
    spoiled = Clients(client_of(before_redis.port, timeout_s), queue.run, deadline_s=60.0)
    every_move(queue, spoiled, meet)
    named = set(re.findall(r"^register\('(\w+)'", library.source(), re.MULTILINE))
    assert {f"eq1_{name}" for name in named - NEVER_CALLED} <= seen


@pytest.mark.parametrize("fault", never_passing(REDIS_FAULTS), ids=lambda fault: fault.name)
def test_a_fault_that_never_ends_is_one_clear_sentence_by_the_deadline(fault: Fault, before_redis: Proxy) -> None:
    before_redis.choose = Always(fault, resp.a_move)
    with pytest.raises(ServiceError) as caught:
        Clients(client_of(before_redis.port, REDIS_SILENCE_S), "run", deadline_s=0.05).lease("w1", Version(0, 0), 1)
    (problem,) = caught.value.problems
    assert problem.fix and problem.where == "queue of run run"


def test_a_learner_that_never_heard_of_its_own_move_is_told_so_and_may_repeat_it(
    queue: Clients, before_redis: Proxy
) -> None:
    """It then asks for something else; Redis, which has forgotten nothing, is not said to have."""
    harness = QueueHarness(queue)
    (task,) = harness.lease(1)
    harness.complete((task,))
    deaf = Clients(client_of(before_redis.port, REDIS_SILENCE_S), queue.run, deadline_s=0.05)
    before_redis.choose = Always(proxy.REPLY_LOST, lambda request: request.about == "eq1_drain")
    with pytest.raises(ServiceError, match="no answer within"):
        deaf.drain(harness.version.lineage, 1)
    before_redis.choose = None
    with pytest.raises(SetBackError, match=r"\(drain\) was made, but its answer was lost") as caught:
        deaf.commit(harness.version.lineage, "0/1", [task.id])
    assert "forgotten" not in str(caught.value)
    assert [group.task for group in deaf.drain(harness.version.lineage, 1).groups] == [task.id]
    harness.check()


def test_a_fault_in_a_pipeline_meets_one_request_only(before_redis: Proxy, run_name: str) -> None:
    client = client_of(before_redis.port, 5.0)
    pipe = client.pipeline(transaction=False)
    for number in range(5):
        pipe.rpush(run_name, number)
    before_redis.choose = Next(resp.OOM, 1, lambda request: b"\r\n3\r\n" in request.raw)
    answers = pipe.execute(raise_on_error=False)
    assert [isinstance(answer, redis.OutOfMemoryError) for answer in answers] == [number == 3 for number in range(5)]
    before_redis.choose = Next(proxy.RESET_AFTER, 1, lambda request: b"\r\n2\r\n" in request.raw)
    with pytest.raises(redis.ConnectionError):
        pipe = client.pipeline(transaction=False)
        for number in range(5):
            pipe.rpush(run_name, number)
        pipe.execute()
    assert client.lrange(run_name, 4, -1) == [b"0", b"1", b"2"], "what came after it never happened"
    client.delete(run_name)


@pytest.mark.parametrize("refusal", (resp.LOADING, resp.CLUSTERDOWN, resp.MASTERDOWN), ids=lambda fault: fault.name)
def test_a_server_that_is_not_ready_is_waited_for_at_connect(refusal: Fault, before_redis: Proxy) -> None:
    before_redis.choose = Next(refusal, 1, lambda request: request.name == "EXISTS")
    with pytest.raises(redis.RedisError) as caught:
        client_of(before_redis.port, 5.0).exists("anything")
    assert redis_errors.may_pass(caught.value)


# The object store -----------------------------------------------------------------------------------------------------


@pytest.fixture
def before_store(s3_server: Server) -> Iterator[Proxy]:
    with Proxy(http1.Http(), int(s3_server.url.rpartition(":")[2])) as before:
        yield before


@pytest.fixture
def store(before_store: Proxy, s3_server: Server, honours_put_once: bool, run_name: str) -> ObjectStore:
    """The objects of a fresh run, behind the proxy."""
    endpoint = replace(s3_server.endpoint(BUCKET), url=f"http://127.0.0.1:{before_store.port}")
    return ObjectStore(replace(endpoint, put_once=honours_put_once), run_name, deadline_s=120.0)


def plain_objects(store: ObjectStore, folder: Path) -> None:
    """Every operation on objects."""
    data = os.urandom(50_000)
    store.check()
    assert store.put("a/one", data) and store.put("a/two", b"2", once=True) and store.put("a/three", b"3")
    assert not store.put("a/two", b"another", once=True)
    assert store.get("a/one") == data
    assert store.get_range("a/one", 100, 1000) == data[100:1100]
    assert (store.size("a/one"), store.size("a/none"), store.exists("a/two")) == (len(data), None, True)
    assert [found.key for found in store.list("a/", page=2)] == ["a/one", "a/three", "a/two"]
    store.delete(["a/one", "a/none"])
    assert [found.key for found in store.list("a/")] == ["a/three", "a/two"]


def what_carries_digests(store: ObjectStore, folder: Path) -> None:
    """Folders, weights, and a checkpoint's tensors."""
    (folder / "from").mkdir()
    (folder / "from" / "file").write_bytes(os.urandom(10_000))
    store.upload_folder(folder / "from", "base")
    store.download_folder("base", folder / "to")
    assert (folder / "to" / "file").read_bytes() == (folder / "from" / "file").read_bytes()

    tensors = {"weight": torch.arange(64, dtype=torch.float32)}
    signer = weights.Signer.generate()
    weight_publisher = weights.WeightPublisher(store, store.prefix.removesuffix("/"), signer, Weights())
    published = weight_publisher.publish(Version(1, 1), tensors, "float32")
    verifier = weights.SignatureVerifier(signer.public_key)
    assert torch.equal(weights.fetch(store, published, verifier)["weight"], tensors["weight"])
    weights.prune(store, Version(1, 1), 1)

    saved: CheckpointManifest | None = None
    for number in (1, 2):
        saved = save(store, Version(1, number), tensors, trained=(f"set/0/{number}",), parent=saved, window=2.0)
    found = newest(store)
    assert found is not None and found[0] == saved
    assert torch.equal(found[1]["weight"], tensors["weight"])
    assert saved is not None
    checkpoint.prune(store, saved, keep=1)
    assert checkpoint.trained_ids(store) == ["set/0/1", "set/0/2"]


STORE_FAULTS = (*proxy.QUICK, *http1.FAILURES, *proxy.HANGING)


@pytest.mark.parametrize("fault", [one_by_one(fault) for fault in STORE_FAULTS])
def test_every_operation_of_the_store_survives_every_fault(
    fault: Fault, before_store: Proxy, store: ObjectStore, tmp_path: Path
) -> None:
    before_store.choose = OfEach(fault)
    plain_objects(store, tmp_path)
    what_carries_digests(store, tmp_path)
    assert before_store.met[fault.name] > 20


def test_a_condition_that_a_server_wrongly_says_is_not_met_costs_nothing(
    before_store: Proxy, store: ObjectStore, tmp_path: Path
) -> None:
    before_store.choose = OfEach(http1.EXISTS, http1.conditional)
    plain_objects(store, tmp_path)
    what_carries_digests(store, tmp_path)


def test_wrong_bytes_are_asked_for_again_where_digests_tell(
    before_store: Proxy, store: ObjectStore, tmp_path: Path
) -> None:
    before_store.choose = OfEach(http1.WRONG_BYTES, http1.with_digest)
    what_carries_digests(store, tmp_path)
    assert before_store.met[http1.WRONG_BYTES.name] >= 3


def test_an_answer_that_ends_anywhere_is_asked_for_again(before_store: Proxy, store: ObjectStore) -> None:
    store.put("a/one", b"content")
    for cut in (1, 9, 13, 15, 17, 40, 100, 200, 300, 400, 500, 600, 700, 800):
        before_store.choose = OfEach(Fault("cut", alter=lambda reply, cut=cut: reply[:cut], then=proxy.Then.closes))  # type: ignore[misc]
        assert [found.key for found in store.list("a/")] == ["a/one"], cut
        assert (store.get("a/one"), store.size("a/one")) == (b"content", 7), cut


@pytest.mark.parametrize("fault", never_passing(STORE_FAULTS), ids=lambda fault: fault.name)
def test_a_stores_fault_that_never_ends_is_one_clear_sentence_by_the_deadline(
    fault: Fault, before_store: Proxy, store: ObjectStore
) -> None:
    store.put("a", b"a")
    store.deadline_s = 0.05
    before_store.choose = Always(fault)
    writes = [] if fault in (proxy.REPLY_CUT, http1.SHORT_BODY) else [lambda: store.put("a", b"a")]
    for operation in (lambda: store.get("a"), lambda: list(store.list()), *writes):
        with pytest.raises(ServiceError) as caught:
            operation()
        (problem,) = caught.value.problems
        assert problem.fix and problem.where == "store.url"
