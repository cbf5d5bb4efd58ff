"""The learner: drain → update → advance → publish → checkpoint → commit, and again.

- Versions are published, and checkpoints saved, by threads beside this loop, of copies of the state.
- Nothing older than S updates is trained, and nothing is trained twice: what counts as trained is what the newest
  checkpoint and its ancestors hold. A restart at any instant continues from there.
- Safety rests on the order: the queue knows a version (advance) before it is published, a checkpoint is durable before
  its groups are committed, and the final model is written before the run is marked finished. A version that was
  published and then lost with its learner is abandoned by the next learner's lineage.
- Every wait ends at `queue.stall_deadline_s` with an error that names what was waited for.

Deliberate simplifications: one process; one optimizer step per batch; the oldest groups first.
"""

import logging
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.queue import Caller, LearnerQueue, Monitor, Operator, Payloads, RunRules, staleness_rules
from echo_queue.records import BASE, Group, Version
from echo_queue.records.validation import PATIENCE, GroupLimits, GroupValidator
from echo_queue.reporting.metrics import MetricsLog
from echo_queue.reporting.trained_groups import TrainedGroups
from echo_queue.storage.object_store import INDEX, ObjectStore
from learner.batch_collector import Batch, BatchCollector
from learner.housekeeper import Housekeeper
from learner.model import device
from learner.model.loading import load_policy, load_reference
from learner.model.policy import Policy
from learner.model.scorer import Scorer
from learner.publication import announcer, signing_key
from learner.publication.publish_thread import publication_period
from learner.publication.weight_broadcast import WeightBroadcast, open_broadcast
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.recovery.background_saver import BackgroundSaver
from learner.recovery.checkpoint import CheckpointManifest
from learner.recovery.resume import resume
from learner.recovery.state_files import Piece
from learner.update import UpdateResult, learn
from learner.update_metrics import Seconds, describe

log = logging.getLogger(__name__)

BASE_FOLDER = "base"
SMOOTHING = 0.2
"""Weight of the newest measurement of T_train."""


def train(config: Config, stop: threading.Event) -> None:
    """Trains until the prompts are exhausted, `learner.max_updates` is reached, or `stop` is set."""
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
    loop = open_loop(config, store, caller)
    housekeeper = Housekeeper(_connect(config), store, config.queue.lease_s, loop.broadcast.observe)
    housekeeper.start()
    loop.broadcast.start()
    try:
        loop.run(stop)
    finally:
        loop.saver.close()
        housekeeper.close()
        loop.broadcast.close()


class TrainingLoop:
    """The learner's main thread: trains, publishes and saves, one update after another.

    `newest`: the checkpoint at which the queue's lineage begins; None: the base model. `window`: w at the start, in
    batches.
    """

    def __init__(
        self,
        config: Config,
        store: ObjectStore,
        queue: LearnerQueue,
        monitor: Monitor,
        *,
        policy: Policy,
        reference: Scorer | None,
        saver: BackgroundSaver,
        newest: CheckpointManifest | None,
        window: float,
        broadcast: WeightBroadcast,
        collector: BatchCollector,
        metrics: MetricsLog,
        trained_groups: TrainedGroups,
    ) -> None:
        self.config, self.store, self.queue, self.monitor = config, store, queue, monitor
        self.policy, self.reference, self.saver = policy, reference, saver
        self.lineage, self.newest, self.window = queue.lineage, newest, window
        self.broadcast, self.collector = broadcast, collector
        self.metrics, self.trained_groups = metrics, trained_groups
        self.version = newest.version if newest else 0
        self.handed_over = -1
        """The number of the version handed over for publication last."""
        self.saved, self.saved_s = self.version, time.monotonic()
        """The number of the version of which a checkpoint was begun last, and when that was."""
        self.trained: list[str] = []
        """Ids of the groups trained since that version."""
        self.t_train_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """Trains until the run is finished or `stop` is set; then everything trained is checkpointed and committed."""
        in_hand = len(self.collector.pending)
        log.info("lineage %d begins at version %d with %d groups in hand", self.lineage, self.version, in_hand)
        self._hand_over()
        while not stop.is_set():
            self._train(stop)
            self._save()
            self._commit(self.saver.wait())
            if not stop.is_set() and self._finish():
                return
        self.broadcast.wait()
        log.info("stopped at version %d; a restart continues", self.version)

    def _train(self, stop: threading.Event) -> None:
        """Trains until the prompts are exhausted, `learner.max_updates` is reached, or `stop` is set."""
        save_s = 0.0
        while not stop.is_set() and not self._reached_max_updates():
            began = time.monotonic()
            batch = self.collector.gather(self.version, stop)
            if stop.is_set() or not batch.groups:
                break
            gathered = time.monotonic()
            result = self._update(batch.groups)
            trained = time.monotonic()
            self._advance(batch, trained - gathered)
            if self._publication_due():
                self._hand_over()
            # Before the checkpoint, so that no committed update lacks its record.
            self._record(batch.groups, result, Seconds(save_s, gathered - began, trained - gathered))
            self._commit(self.saver.finished())
            if self._checkpoint_due():
                self._save()
            save_s = time.monotonic() - trained

    def _update(self, groups: Sequence[Group]) -> UpdateResult:
        """Trains the next version. Raises `EchoQueueError` if the queue returned a group beyond S."""
        for group in groups:
            if not staleness_rules.admissible(self.version, group.oldest, self.config.staleness.s):
                what = f"{group.task} has lag {self.version - group.oldest}, more than S = {self.config.staleness.s}"
                raise EchoQueueError(Problem("learner", what, "the queue broke its rules: please report this"))
        settings, temperature = self.config.learner, self.config.rollout.temperature
        return learn(
            self.policy, Team.alone(), groups, self.version + 1, settings, temperature, reference=self.reference
        )

    def _advance(self, batch: Batch, t_train_s: float) -> None:
        """Advances the queue to the new version; sets the window by how long this update had to wait for groups."""
        self.version += 1
        self.trained += [group.task for group in batch.groups]
        self.t_train_s += (t_train_s - self.t_train_s) * (SMOOTHING if self.t_train_s else 1.0)
        size, widest = self.config.learner.batch_groups, self.config.staleness.s + 1
        self.window = staleness_rules.pace(self.window, batch.starved_s, t_train_s, batch.ready, size, widest=widest)
        self.queue.advance(self.version, len(batch.groups), self.window)

    def _hand_over(self) -> None:
        """Hands this version's weights over for publication."""
        self.handed_over = self.version
        version = Version(self.lineage, self.version)
        self.collector.handed_out(version)
        self.broadcast.hand_over(version, self.policy.snapshot() or {})

    def _record(self, groups: Sequence[Group], result: UpdateResult, seconds: Seconds) -> None:
        """Writes the update to `metrics.jsonl` and the log, and keeps its groups for people to inspect."""
        version = Version(self.lineage, self.version)
        metrics = describe(
            version,
            groups,
            result,
            seconds,
            window=self.window,
            t_bcast_s=self.broadcast.t_bcast_s,
            stored=self.broadcast.stored,
            status=self.monitor.status(),
        )
        self.metrics.write(metrics)
        self.trained_groups.keep(version, groups)

    def _save(self) -> None:
        """Begins to save a checkpoint in the background, once the one before it is durable and committed."""
        self._commit(self.saver.wait())
        if not self.trained:
            return
        version, trained = Version(self.lineage, self.version), tuple(self.trained)
        tensors = {piece.name: piece.tensor for piece in self.policy.pieces()}
        self.saver.begin(version, tensors, trained=trained, parent=self.newest, window=self.window)
        self.saved, self.saved_s = self.version, time.monotonic()
        self.trained.clear()

    def _commit(self, saved: CheckpointManifest | None) -> None:
        """Commits a durable checkpoint's groups, if there is one: the next learner's `resume` fixes a crash before it.

        Then it removes the tensors of older checkpoints.
        """
        if saved is None:
            return
        self.newest = saved
        self.queue.commit(saved.name, saved.trained)
        checkpoint.prune(self.store, saved, self.config.learner.keep_checkpoints)

    def _finish(self) -> bool:
        """Writes the final model and marks the run finished. Returns False if more groups to train came meanwhile."""
        if self.handed_over < self.version:
            self._hand_over()
        self.broadcast.wait()
        folder = self.config.run.dir / "model"
        export(self.policy, self.policy.snapshot() or {}, self.config.base_model, folder)
        finished = self.queue.finish(force=self._reached_max_updates())
        if finished:
            log.info("finished at version %d; the model is %s", self.version, folder)
        return finished

    def _reached_max_updates(self) -> bool:
        return 0 < self.config.learner.max_updates <= self.version

    def _checkpoint_due(self) -> bool:
        settings = self.config.learner
        late = 0 < settings.checkpoint_s <= time.monotonic() - self.saved_s
        return late or self.version - self.saved >= settings.checkpoint_updates

    def _publication_due(self) -> bool:
        kappa = self.config.staleness.kappa
        if kappa == "auto":
            kappa = publication_period(self.broadcast.t_bcast_s, self.t_train_s, self.config.staleness.s)
        return self.version - self.handed_over >= kappa


def open_loop(config: Config, store: ObjectStore, caller: Caller) -> TrainingLoop:
    """Resumes the run at its newest checkpoint: from then on every older learner of the run is fenced."""
    monitor = Monitor(caller)
    where, team = device.choose(config.learner.device), Team.alone()
    policy = load_policy(config, where, team)
    reference = load_reference(config, where, team) if config.learner.kl else None
    restored = _restore(store, policy)
    window = restored.window if restored else monitor.status().window
    signer = signing_key.signer(config)
    patience = max(config.learner.batch_groups, PATIENCE)
    validator = GroupValidator(GroupLimits.of(config, policy.vocabulary), BASE, patience)
    queue = LearnerQueue(caller, Payloads.of(config, store, validator=validator))
    lineage, newest = resume(queue, store, restored)
    queue.publish_keys(signing_key.run_keys(signer))
    announcements = LearnerQueue(caller.within(announcer.DEADLINE_S), lineage=lineage)
    broadcast = open_broadcast(config, store, queue, announcements, signer)
    version = Version(lineage, newest.version if newest else 0)
    saver = BackgroundSaver(store, config.queue.stall_deadline_s)

    def check() -> None:
        broadcast.check()
        saver.check()

    return TrainingLoop(
        config,
        store,
        queue,
        monitor,
        policy=policy,
        reference=reference,
        saver=saver,
        newest=newest,
        window=window,
        broadcast=broadcast,
        collector=BatchCollector(config, queue, monitor, validator, version=version, check=check),
        metrics=MetricsLog(config.run.dir / "metrics.jsonl"),
        trained_groups=TrainedGroups(config),
    )


def _restore(store: ObjectStore, policy: Policy) -> CheckpointManifest | None:
    """Gives `policy` the state of the newest whole checkpoint, and returns that; None if there is none yet."""
    found = checkpoint.newest(store)
    if found is None:
        return None
    manifest, tensors = found

    def read(pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            piece.tensor.copy_(tensors[piece.name])

    policy.restore({name: tuple(tensor.shape) for name, tensor in tensors.items()}, read)
    return manifest


def export(policy: Policy, weights: Mapping[str, Tensor], base: str, folder: Path) -> None:
    """Writes a snapshot of the model with its tokenizer as a Hugging Face folder, which is whole or does not exist."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    failpoints.step("write model", lambda: policy.save_pretrained(temporary, weights))
    failpoints.step("write tokenizer", lambda: AutoTokenizer.from_pretrained(base).save_pretrained(temporary))
    if folder.exists():
        failpoints.step("remove model", lambda: shutil.rmtree(folder))
    failpoints.step("rename model", lambda: temporary.rename(folder))


def _connect(config: Config) -> Caller:
    return Caller.connect(config, "learner", config.queue.stall_deadline_s)


def _share_base(config: Config, store: ObjectStore) -> None:
    """Uploads a base model's folder once, for workers on other machines; a hub model they download themselves."""
    folder = Path(config.base_model)
    if folder.is_dir() and not store.exists(f"{BASE_FOLDER}/{INDEX}"):
        store.upload_folder(folder, BASE_FOLDER)
