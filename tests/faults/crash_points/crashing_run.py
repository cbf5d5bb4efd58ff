"""A role that dies at named points, the others of its run, and what must hold when all is over.

The servers are started once; each case is a run of its own (or a set of its own, or a directory). The role under test
runs in processes of its own (`role_processes`); the other side of the queue is real calls of the real queue:
`InstantWorker` generates nothing and completes at once, `Committer` trains nothing but keeps real checkpoints.
"""

import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from echo_queue.config import Config
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.connections.secrets import ROLES, StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.queue import Heartbeat, Peer, library
from echo_queue.queue.acl import rules
from echo_queue.queue.types import ScoredTask
from echo_queue.records import Group, Sample, Span, Task, Version
from echo_queue.weights import Announcement, SignatureVerifier, WeightPublisher, read_manifest
from learner.publication import signing_key
from learner.recovery.manifest import CheckpointManifest
from tests.faults.crash_points.fork_server import ForkRequest, ForkServer, RoleProcess
from tests.learner.learner_harness import make_base
from tests.learner.recovery.one_process import save
from tests.learner.synthetic import VOCABULARY
from tests.queue.clients import Clients

BUCKET, PASSWORD = "crash-points", "secret"
KEYS = StoreKeys("A" * 20, "b" * 40)
RUNS = "crash-*"
CELERY_RUNS = ("crash-submitter", "crash-celery")
DEADLINE_S = 120.0
LEASE_S, HEARTBEAT_S = 0.3, 0.03


class CrashHarness:
    """The servers, the model and the fork server of all cases."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base = directory / "base"
        make_base(self.base)
        users = [User(role, PASSWORD, rules(role, RUNS, "")) for role in ROLES if role != "celery"]
        users.sort(key=lambda user: user.name != "admin")
        # Channels are granted one by one, so the broker's user names the runs that have one.
        brokers = (rules("celery", RUNS, CELERY_PREFIX.format(run=run)) for run in CELERY_RUNS)
        users.append(User("celery", PASSWORD, " ".join(brokers)))
        program = shutil.which("redis-server")
        self.redis = RedisServer(directory / "redis", Path(program) if program else None, users)
        self.s3 = S3Server(directory / "s3", KEYS)
        self.environ = {
            "ECHO_QUEUE_REDIS_PASSWORD": PASSWORD,
            "ECHO_QUEUE_STORE_ACCESS_KEY": KEYS.access_key,
            "ECHO_QUEUE_STORE_SECRET_KEY": KEYS.secret_key,
            "HOME": str(directory),
        }

    def __enter__(self) -> Self:
        self.redis.start()
        self.client = self.redis.client()
        library.load(self.client)
        self.s3.start()
        self._store = ObjectStore(replace(self.s3.endpoint(BUCKET), put_once=False), "crash")
        self._store.create_bucket()
        self.fork_server = ForkServer(self.base, self.directory / "fork-server.log")
        return self

    def __exit__(self, *_: object) -> None:
        self.fork_server.__exit__()
        self.redis.stop()
        self.s3.stop()

    def config(self, run: str, *, evaluation: Sequence[dict[str, Any]] = (), **sections: dict[str, Any]) -> Config:
        values: dict[str, Any] = {
            "run": {"name": f"crash-{run}", "dir": self.directory / "runs" / run},
            "redis": {"url": self.redis.url, "username": "{role}"},
            "store": {"url": self.s3.url, "bucket": BUCKET},
            "model": {"base": str(self.base), "max_prompt_tokens": 256, "max_new_tokens": 4},
            "rollout": {"group_size": 2, "concurrent_groups": 2},
            "staleness": {"s": 1, "pace": False},
            "learner": {"batch_groups": 2, "checkpoint_updates": 1, "lr": 1e-3},
            "queue": {"stall_deadline_s": 20.0, "lease_s": LEASE_S, "inline_max_bytes": 1, "max_attempts": 6},
            "submission": {"reconcile_s": 0.05, "deadline_s": 20.0},
            "telemetry": {"heartbeat_s": HEARTBEAT_S},
            # Several parts of several chunks to a version; anchors and longer differences soon; a cache that overflows.
            "weights": {"part_bytes": 40_000, "chunk_bytes": 4_096, "anchor_every": 3, "skips": [2]},
        }
        for section, changes in sections.items():
            values[section] = values.get(section, {}) | changes
        values["evaluation"] = evaluation
        return Config.model_validate(values)

    def queue(self, config: Config) -> Clients:
        """Returns the queue of `config`, for a user who may do anything."""
        store, inline = self.store(config), config.queue.inline_max_bytes
        return Clients(self.client, config.run.name, store, inline_max_bytes=inline, deadline_s=DEADLINE_S)

    def store(self, config: Config) -> ObjectStore:
        store = copy(self._store)
        store.prefix = f"{config.run.name}/"
        return store

    def begin(self, role: str, about: Any, log: Path, crash_at: str = "", record: Path | None = None) -> RoleProcess:
        log.parent.mkdir(parents=True, exist_ok=True)
        return self.fork_server.begin(ForkRequest(role, about, log, crash_at, record, self.environ))


class OtherRole(threading.Thread, ABC):
    """Another role of the run: `turn` is called again and again until `close`. What it raises, `close` raises."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._closed = threading.Event()
        self._error: BaseException | None = None

    @abstractmethod
    def turn(self) -> bool:
        """Does one round of work; returns whether there was anything to do."""

    def run(self) -> None:
        try:
            while not self._closed.is_set():
                if not self.turn():
                    self._closed.wait(0.005)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self.join(DEADLINE_S)
        assert not self.is_alive(), f"{self.name} does not end"
        if self._error is not None:
            raise self._error


class InstantWorker(OtherRole):
    """A worker that completes what it leases at once, and answers rounds of evaluation with one sample.

    The group of `spoiled` has a token that no model knows.

    By weights of the first lineage, the group of `outgrown` has a sample more than today's group size. The group of
    `flat` has equal rewards.
    """

    def __init__(self, queue: Clients, spoiled: str = "", outgrown: str = "", flat: str = "") -> None:
        super().__init__("instant")
        self._queue = queue
        self._spoiled, self._outgrown, self._flat = spoiled, outgrown, flat
        self._version = Version(0, 0)
        self._told: Version | None = None

    def turn(self) -> bool:
        lease = self._queue.lease(self.name, self._version, 4)
        if lease.published and not lease.keeps:
            self._version = lease.published.version
        if self._told != self._version:
            self._queue.heartbeat(self.name, Heartbeat("engine", self._version, "generating"), every_s=DEADLINE_S)
            self._told = self._version
        if lease.tasks:
            self._queue.complete(self.name, [self.group(task, task.version or self._version) for task in lease.tasks])
        return bool(lease.tasks)

    def group(self, task: Task, version: Version) -> Group:
        last = VOCABULARY + 1 if task.id == self._spoiled else VOCABULARY - 1
        more = (1.0,) if task.id == self._outgrown and version.lineage == 1 else ()
        tokens = np.array([1, 2, last], np.int32)
        samples = tuple(
            Sample(tokens, np.full(3, -3.0, np.float32), (Span(0, version.number),), reward, "stop")
            for reward in ((1.0,) if task.version else (1.0 if task.id == self._flat else 0.0, 1.0, *more))
        )
        prompt = np.array([3, 4], np.int32)
        return Group(
            task.id, task.set, task.epoch, task.index, task.attempt, self.name, version.lineage, prompt, samples
        )  # fmt: skip


class Committer(OtherRole):
    """A learner that learns nothing: what it drains it writes into a checkpoint, and commits; its weights drift.

    With a `ghost`, a worker of that name, which no peer can reach, is the first to ask for each version. `ahead`:
    versions published before anything was trained; `most`: groups in an update. It evaluates the set `held_out`, until
    one version has answered all of it, once `held_out_from` groups are trained.
    """

    def __init__(
        self,
        queue: Clients,
        store: ObjectStore,
        tensors: dict[str, torch.Tensor],
        config: Config,
        *,
        ghost: str = "",
        ahead: int = 0,
        most: int = 8,
        held_out: str = "",
        held_out_from: int = 0,
    ) -> None:
        super().__init__("committer")
        self._queue, self._store, self._ghost = queue, store, ghost
        self._tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        signer = signing_key.signer(config)
        self._verifier = SignatureVerifier(signer.public_key)
        self._weight_publisher = WeightPublisher(
            *(store, config.run.name, signer, config.weights),
            chunk_key=signing_key.run_keys(signer).chunk_key if config.weights.encrypt else None,
            announce=self._announce,
        )
        self.trained: list[str] = []
        self.generated: set[str] = set()
        """The versions that made what was trained."""
        self.evaluated: list[ScoredTask] = []
        """The answers of the round that was answered, and the tasks of it that failed."""
        self._held_out, self._held_out_from = held_out, held_out_from
        self._most = most
        self._saved: CheckpointManifest | None = None
        self.lineage = queue.resume().lineage
        queue.publish_keys(self.lineage, signing_key.run_keys(signer))
        self._version = 0
        self._publish()
        for _ in range(ahead):
            self._advance(0)

    def _announce(self, announcement: Announcement, document: bytes) -> None:
        version, route = announcement.version, announcement.route
        self._queue.announce(self.lineage, version, route, announcement.place, document)

    def turn(self) -> bool:
        self._queue.reclaim()
        drained = self._queue.drain(self.lineage, self._most)
        ids = tuple(group.task for group in drained.groups)
        if ids:
            self._advance(len(ids))
            version = Version(self.lineage, self._version)
            self._saved = save(self._store, version, self._tensors, trained=ids, parent=self._saved, window=2.0)
            self._queue.commit(self.lineage, self._saved.name, ids)
            self.trained += ids
            self.generated |= {f"{group.lineage}.{group.newest}" for group in drained.groups}
        if self._held_out and not self.evaluated and len(self.trained) >= self._held_out_from:
            self._evaluate()
        return bool(ids)

    def _evaluate(self) -> None:
        """Asks the newest version; concludes a round that is answered, or that nobody answers since a newer one is."""
        newest, asked = Version(self.lineage, self._version), self._queue.status().evaluation
        if asked is None:
            self._queue.evaluate(self.lineage, newest, self._held_out)
        elif asked.scored == asked.prompts:
            self.evaluated = self._queue.scored(self.lineage)
            self._queue.conclude(self.lineage, asked.number)
        elif asked.version != newest and not asked.running:
            self._queue.conclude(self.lineage, asked.number)

    def _advance(self, trained: int) -> None:
        self._version += 1
        self._queue.advance(self.lineage, self._version, trained, 2.0)
        self._publish()

    def _publish(self) -> None:
        version = Version(self.lineage, self._version)
        published = self._weight_publisher.publish(version, self._tensors, "float32")
        if self._ghost:
            route = read_manifest(self._store, published, self._verifier).route
            self._queue.heartbeat(self._ghost, Heartbeat("engine", version, "idle"), every_s=60.0)
            self._queue.join(Peer(self._ghost, "default", "127.0.0.1:1"), route.name)
        self._queue.publish(self.lineage, published)
        self._weight_publisher.further(version)
        for tensor in self._tensors.values():
            tensor.view(-1)[:: self._version + 2] += 1e-3
