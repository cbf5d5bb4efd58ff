"""The learner: drain → learn → advance → publish → checkpoint → commit, and again.

- Nothing older than S updates is trained, and nothing is trained twice: what counts as trained is what the
  newest checkpoint and its ancestors hold. A restart at any instant goes on from there.
- Order is safety: the queue knows a version before it is published, a checkpoint is durable before its groups are
  committed, the final model is written before the run is marked finished. A version published and then lost with the
  learner is abandoned by the next one's lineage.
- Every wait ends at `queue.stall_deadline_s` with an error that names what was waited for.

What is simple here, on purpose: one process and one device; one optimizer step per batch; oldest groups first.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer

from echo_queue import failpoints, weights
from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.queue import Caller, LearnerQueue, Monitor, Operator, Payloads, RunRules, Status, staleness
from echo_queue.records import Group, Published, Version
from echo_queue.records.validation import PATIENCE, GroupLimits, GroupValidator
from echo_queue.reporting.metrics import MetricsLog
from echo_queue.reporting.samples import TrainedGroups
from echo_queue.storage.object_store import INDEX, ObjectStore
from learner.collector import Batch, BatchCollector
from learner.housekeeper import Housekeeper
from learner.model.policy import Policy, load_model
from learner.publication import announcer, signing_key
from learner.publication.announcer import Announcer
from learner.publication.publish_thread import Publisher, publication_period
from learner.recovery import checkpoint
from learner.recovery.resume import resume
from learner.update import UpdateResult, learn
from learner.update_metrics import Seconds, describe

log = logging.getLogger(__name__)

BASE = "base"
SMOOTHING = 0.2
"""Weight of the newest measurement of T_train."""


def train(config: Config, leaving: threading.Event) -> None:
    """Trains until the backlog is exhausted, `learner.max_updates`, or `leaving` is set."""
    torch.set_num_threads(config.learner_threads)
    torch.manual_seed(config.run.seed)
    store = connect_store(config, "learner")
    store.deadline_s = config.queue.stall_deadline_s
    caller = _connect(config)
    operator = Operator(caller)
    operator.configure(RunRules.of(config))
    if operator.status().finished:
        log.info("run %s is finished; its model is %s", config.run.name, config.run.dir / "model")
        return
    _share_base(config, store)
    learner = Learner(config, store, caller)
    housekeeper = Housekeeper(_connect(config), store, config.queue.lease_s, learner.observe)
    housekeeper.start()
    learner.publisher.start()
    learner.announcer.start()
    try:
        learner.run(leaving)
    finally:
        housekeeper.close()
        learner.publisher.close()
        learner.announcer.close()


class Learner:
    """Resumes on construction: from then on any older learner of the run is fenced."""

    def __init__(self, config: Config, store: ObjectStore, caller: Caller) -> None:
        self.config, self.store, self.monitor = config, store, Monitor(caller)
        self.policy = Policy(load_model(config), config.learner, getattr(torch, config.model.dtype))
        self.reference = load_model(config).requires_grad_(False) if config.learner.kl else None
        self.saved: checkpoint.Manifest | None = None
        if found := checkpoint.newest(store):
            self.saved, tensors = found
            self.policy.restore(tensors)
        self.version = self.saved.version if self.saved else 0
        self.window = self.saved.window if self.saved else self.monitor.status().window
        signer = signing_key.signer(config)
        patience = max(config.learner.batch_groups, PATIENCE)
        validator = GroupValidator(GroupLimits.of(config, self.policy.vocabulary), Version(0, 0), patience)
        self.queue = LearnerQueue(caller, Payloads.of(config, store, validator=validator))
        self.lineage, self.saved = resume(self.queue, store, self.saved)
        self.queue.publish_keys(signing_key.trust(signer))
        self.announcer = Announcer(LearnerQueue(caller.within(announcer.DEADLINE_S), lineage=self.lineage))
        self.weight_publisher = weights.WeightPublisher(
            *(store, config.run.name, signer, config.weights, config.run.dir / "bases"),
            chunk_key=signing_key.trust(signer).chunk_key if config.weights.encrypt else None,
            announce=self.announcer.announce,
        )
        self.trained: list[str] = []
        self.t_train_s = 0.0
        self.publisher = Publisher(self._publish, self._follow, config.queue.stall_deadline_s)
        self.published = -1
        self.pointer: Published | None = None
        self.served: frozenset[Version] = frozenset()
        version = Version(self.lineage, self.version)
        self.gathering = BatchCollector(
            config, self.queue, self.monitor, validator, version=version, check=self.publisher.check
        )
        self.metrics = MetricsLog(config.run.dir / "metrics.jsonl")
        self.kept = TrainedGroups(config)

    def run(self, leaving: threading.Event) -> None:
        """The loop."""
        log.info(
            "lineage %d begins at version %d with %d groups in hand",
            *(self.lineage, self.version, len(self.gathering.pending)),
        )
        self._hand_over()
        while not leaving.is_set():
            self._train(leaving)
            self._save()
            if not leaving.is_set() and self._finish():
                return
        self.publisher.wait()
        log.info("stopped at version %d; a restart continues", self.version)

    def _train(self, leaving: threading.Event) -> None:
        """Until nothing is left to train, it is enough, or `leaving` is set."""
        kept_s = 0.0
        while not leaving.is_set() and not self._enough():
            began = time.monotonic()
            batch = self.gathering.gather(self.version, leaving)
            if leaving.is_set() or not batch.groups:
                break
            gathered = time.monotonic()
            learned = self._learn(batch.groups)
            trained = time.monotonic()
            self._advance(batch, trained - gathered)
            if self._publication_due():
                self._hand_over()
            # Before the checkpoint: an update that is committed has left its record.
            self._record(batch.groups, learned, Seconds(kept_s, gathered - began, trained - gathered))
            if self._checkpoint_due():
                self._save()
            kept_s = time.monotonic() - trained

    def _learn(self, groups: Sequence[Group]) -> UpdateResult:
        for group in groups:
            if not staleness.admissible(self.version, group.oldest, self.config.staleness.s):
                what = f"{group.task} has lag {self.version - group.oldest}, more than S = {self.config.staleness.s}"
                raise EchoQueueError(Problem("learner", what, "the queue broke its rules: please report this"))
        settings, temperature = self.config.learner, self.config.rollout.temperature
        return learn(self.policy, groups, self.version + 1, settings, temperature, reference=self.reference)

    def _advance(self, batch: Batch, t_train_s: float) -> None:
        """The queue learns of the new version; the window follows what this update had to wait."""
        self.version += 1
        self.trained += [group.task for group in batch.groups]
        self.t_train_s += (t_train_s - self.t_train_s) * (SMOOTHING if self.t_train_s else 1.0)
        size, widest = self.config.learner.batch_groups, self.config.staleness.s + 1
        self.window = staleness.pace(self.window, batch.starved_s, t_train_s, batch.ready, size, widest=widest)
        self.queue.advance(self.version, len(batch.groups), self.window)

    def _save(self) -> None:
        """Durable first, then committed: the next learner's `resume` fixes a crash in between."""
        if not self.trained:
            return
        version, trained = Version(self.lineage, self.version), tuple(self.trained)
        self.saved = checkpoint.save(
            self.store, version, self.policy.tensors(), trained=trained, parent=self.saved, window=self.window
        )
        self.queue.commit(self.saved.name, trained)
        self.trained.clear()
        checkpoint.prune(self.store, self.saved, self.config.learner.keep_checkpoints)

    def _hand_over(self) -> None:
        """This version's weights are on their way to the workers."""
        self.published = self.version
        version = Version(self.lineage, self.version)
        self.gathering.handed_out(version)
        self.publisher.hand_over(version, self.policy.weights())

    def _publish(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        """In the publisher's thread: stored whole, then pointed at."""
        published = self.weight_publisher.publish(version, tensors, self.config.model.dtype)
        self.queue.publish(published)
        self.pointer = published

    def _follow(self, version: Version, hurried: Callable[[], bool]) -> None:
        """Likewise: what workers that missed versions will want, and what nobody can want any more."""
        self.weight_publisher.further(version, hurried)
        weights.prune(self.store, version, self.config.staleness.s, self.served)

    def observe(self, status: Status) -> None:
        """In the housekeeper's thread. A pointer that Redis has forgotten is set again: nobody else would."""
        self.publisher.observe(status)
        self.served = frozenset(worker.heartbeat.version for worker in status.workers if worker.heartbeat is not None)
        last, now = self.pointer, status.published
        if last is not None and (now is None or now.version < last.version):
            self.queue.publish(last)

    def _finish(self) -> bool:
        """False if something to train has come meanwhile."""
        if self.published < self.version:
            self._hand_over()
        self.publisher.wait()
        folder = self.config.run.dir / "model"
        export(self.policy, self.config.base_model, folder)
        finished = self.queue.finish(force=self._enough())
        if finished:
            log.info("finished at version %d; the model is %s", self.version, folder)
        return finished

    def _record(self, groups: Sequence[Group], learned: UpdateResult, seconds: Seconds) -> None:
        version = Version(self.lineage, self.version)
        described = describe(
            *(version, groups, learned, seconds),
            window=self.window,
            t_bcast_s=self.publisher.t_bcast_s,
            stored=self.weight_publisher.stored,
            status=self.monitor.status(),
        )
        self.metrics.write(described)
        self.kept.keep(version, groups)

    def _enough(self) -> bool:
        return 0 < self.config.learner.max_updates <= self.version

    def _checkpoint_due(self) -> bool:
        return self.version - (self.saved.version if self.saved else 0) >= self.config.learner.checkpoint_updates

    def _publication_due(self) -> bool:
        kappa = self.config.staleness.kappa
        if kappa == "auto":
            kappa = publication_period(self.publisher.t_bcast_s, self.t_train_s, self.config.staleness.s)
        return self.version - self.published >= kappa


def export(policy: Policy, base: str, folder: Path) -> None:
    """The model with its tokenizer as a Hugging Face folder; whole, or not there."""
    draft = folder.with_name(folder.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    failpoints.step("draft model", lambda: policy.model.save_pretrained(draft))
    failpoints.step("draft tokenizer", lambda: AutoTokenizer.from_pretrained(base).save_pretrained(draft))
    if folder.exists():
        failpoints.step("remove model", lambda: shutil.rmtree(folder))
    failpoints.step("place model", lambda: draft.rename(folder))


def _connect(config: Config) -> Caller:
    return Caller.connect(config, "learner", config.queue.stall_deadline_s)


def _share_base(config: Config, store: ObjectStore) -> None:
    """The base model's folder goes to the store once, for workers elsewhere; a hub model they fetch themselves."""
    folder = Path(config.base_model)
    if folder.is_dir() and not store.exists(f"{BASE}/{INDEX}"):
        store.upload_folder(folder, BASE)
