"""A whole run behind proxies, with faults at some per cent of all requests: the same verdict as everywhere.

Real servers, a real Celery worker, a real learner that is stopped and started again; only generation is made up.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest
import torch

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections import connect, retries
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.connections.secrets import ROLES, StoreKeys
from echo_queue.connections.storage import client as store_client
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import DeadlineError, ServiceError
from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.queue import RunRules, acl, events, library
from echo_queue.reporting import metrics
from echo_queue.submission import submit
from learner.recovery import checkpoint
from learner.training_loop import train
from tests.faults.proxy import http1, proxy, resp
from tests.faults.proxy.proxy import Choose, Proxy, Randomly
from tests.learner.learner_harness import SimulatedWorker, make_base
from tests.queue.clients import Clients
from tests.seed import session_seed
from tests.submission.conftest import SubmissionHarness
from tests.waiting import DEADLINE_S, wait_until

RUN, BUCKET, PASSWORD = "proxied", "proxied", "secret"
KEYS = StoreKeys("A" * 20, "b" * 40)
PROMPTS = 60
REDIS_SHARE, STORE_SHARE = 0.05, 0.2


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent server is given up in half a second: this run meets dozens."""
    torch.set_num_threads(1)
    monkeypatch.setattr(connect, "SOCKET_TIMEOUT_S", 0.6)
    monkeypatch.setattr(events, "BLOCK_S", 0.3)
    monkeypatch.setattr(store_client, "READ_TIMEOUT_S", 0.5)
    monkeypatch.setattr(retries, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(retries, "LONGEST_PAUSE_S", 0.2)


class ProxiedServices:
    """A run whose roles reach its services through proxies only; `proxies` are those before Redis and the store."""

    def __init__(self, directory: Path) -> None:
        prefix = CELERY_PREFIX.format(run=RUN)
        users = [User(role, PASSWORD, acl.rules(role, RUN, prefix)) for role in sorted(ROLES, key="admin".__ne__)]
        self.redis = RedisServer(directory / "redis", None, users)
        self.s3 = S3Server(directory / "s3", KEYS)
        self.path = directory / "run.toml"
        self._directory = directory
        self._left = ExitStack()

    def __enter__(self) -> "ProxiedServices":
        for server in (self.redis, self.s3):
            server.start()
            self._left.callback(server.stop)
        self.admin = Clients(self.redis.client(), RUN, deadline_s=10.0)
        library.load(self.admin.client)
        self.store = ObjectStore(self.s3.endpoint(BUCKET), RUN)
        self.store.create_bucket()
        self.proxies = self._proxies()
        self._for_celery = self._proxies()
        make_base(self._directory / "base")
        self.path.write_text(
            f"""
            run = {{ name = "{RUN}", dir = "{self._directory}" }}
            redis = {{ url = "redis://127.0.0.1:{self.proxies[0].port}/0", username = "{{role}}" }}
            store = {{ url = "http://127.0.0.1:{self.proxies[1].port}", bucket = "{BUCKET}" }}
            model = {{ base = "{self._directory / "base"}" }}
            prompts = {{ chunk = 10 }}
            submission = {{ reconcile_s = 0.5, deadline_s = 15 }}
            rollout = {{ group_size = 2 }}
            staleness = {{ s = 2 }}
            learner = {{ batch_groups = 4, checkpoint_updates = 2, lr = 1e-3 }}
            queue = {{ stall_deadline_s = 120, lease_s = 3 }}
            """
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def spoil(self, seed: int) -> None:
        """Makes requests meet faults, from now on. None hangs for Celery, which has a patience of its own."""
        quick, all_of_s3 = proxy.QUICK, (*proxy.QUICK, *http1.FAILURES)
        refused = Randomly(seed, REDIS_SHARE, resp.REFUSALS, resp.a_move)
        broken = Randomly(seed + 1, REDIS_SHARE, (*quick, *proxy.HANGING))
        either: Choose = lambda request: refused(request) or broken(request)  # noqa: E731
        self.proxies[0].choose = either
        self.proxies[1].choose = Randomly(seed + 2, STORE_SHARE, (*all_of_s3, *proxy.HANGING))
        self._for_celery[0].choose = Randomly(seed + 3, REDIS_SHARE / 2, quick)
        self._for_celery[1].choose = Randomly(seed + 4, STORE_SHARE, all_of_s3)

    def harness(self) -> SubmissionHarness:
        """Returns a submission harness that starts Celery workers of this run."""
        secrets = {"REDIS_PASSWORD": PASSWORD, "STORE_ACCESS_KEY": KEYS.access_key, "STORE_SECRET_KEY": KEYS.secret_key}
        secrets |= {"REDIS__URL": f"redis://127.0.0.1:{self._for_celery[0].port}/0"}
        secrets |= {"STORE__URL": f"http://127.0.0.1:{self._for_celery[1].port}", "CONFIG": str(self.path)}
        environ = os.environ | {f"ECHO_QUEUE_{name}": value for name, value in secrets.items()}
        harness = SubmissionHarness(self.path, environ, self.admin, self.store)
        self._left.callback(lambda: [harness.kill(worker) for worker in harness.workers])
        return harness

    def work(self, config: Config, name: str) -> None:
        worker = SimulatedWorker(config, name, generation_s=0.01)
        worker.start()
        self._left.callback(worker.close)

    def _proxies(self) -> tuple[Proxy, Proxy]:
        pair = Proxy(resp.Resp(), self.redis.port), Proxy(http1.Http(), self.s3.port)
        for each in pair:
            self._left.enter_context(each)
        return pair


@pytest.fixture
def proxied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProxiedServices]:
    monkeypatch.setenv("ECHO_QUEUE_REDIS_PASSWORD", PASSWORD)
    monkeypatch.setenv("ECHO_QUEUE_STORE_ACCESS_KEY", KEYS.access_key)
    monkeypatch.setenv("ECHO_QUEUE_STORE_SECRET_KEY", KEYS.secret_key)
    with ProxiedServices(tmp_path) as proxied:
        yield proxied


def submitted(harness: SubmissionHarness, source: str) -> int:
    """Submits, again if the error says so. A Celery worker that has fallen silent is started again, as that error asks:
    Kombu's consumer may stop polling when its connection ends in the middle of a transaction."""
    for _ in range(8):
        try:
            return submit(harness.config(), source).prompts
        except DeadlineError:
            harness.kill(harness.workers[-1])
            harness.celery()
        except ServiceError as error:
            assert "submit again" in str(error)
    raise AssertionError("the broker never came back")


@pytest.mark.slow
def test_a_run_behind_faulty_connections_loses_nothing_and_trains_each_prompt_once(
    proxied: ProxiedServices, tmp_path: Path
) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_bytes(b"".join(orjson.dumps({"prompt": f"w{index}"}) + b"\n" for index in range(PROMPTS)))
    harness, config = proxied.harness(), load(proxied.path)
    proxied.admin.configure(RunRules.of(config))
    proxied.spoil(session_seed())

    harness.celery()
    for name in ("w1", "w2"):
        proxied.work(config, name)
    stop = threading.Event()
    learner = threading.Thread(target=train, args=(config, stop), daemon=True)
    learner.start()
    assert submitted(harness, str(source)) == PROMPTS
    wait_until(lambda: proxied.admin.status().learner.number >= 4, "four updates")
    stop.set()
    learner.join(DEADLINE_S)
    assert not learner.is_alive() and proxied.admin.audit().ok
    train(config, threading.Event())

    audit = proxied.admin.audit()
    assert audit.ok and audit.trained == PROMPTS, audit
    ids = [f"prompts/0/{index}" for index in range(PROMPTS)]
    assert sorted(checkpoint.trained_ids(proxied.store)) == sorted(ids)
    lines = metrics.read(config.run.dir / "metrics.jsonl")
    assert max(int(lag) for line in lines for lag in line.lags) <= config.staleness.s
    for before, server in zip(proxied.proxies, ("Redis", "the store"), strict=True):
        print(f"{before.requests} requests to {server}, {before.met.total()} faults: {dict(before.met)}")
        assert before.met.total() >= 10
