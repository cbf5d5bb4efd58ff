"""The learner's loop, the same on every rank: train → advance → publish → record → checkpoint, and again.

- Rank 0 decides what is next and speaks with Redis (`learner.leader`); the other ranks hear it (`learner.follower`).
  A learner of one process is rank 0 of one.
- A restart at any instant continues from the newest checkpoint, with any number of ranks.
- Every wait ends at a deadline with an error that names what was waited for.

A deliberate simplification: the oldest groups come first, unless `learner.selection` is told otherwise.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ConfigError
from echo_queue.launch.liveness import LivenessThread, StepClock
from echo_queue.queue import LearnerQueue, Monitor, Payloads, RunRules, Status
from echo_queue.queue.run_rules import differences
from echo_queue.records import BASE, Version
from echo_queue.records.validation import PATIENCE, GroupLimits, GroupValidator
from echo_queue.reporting.run_record import unrecorded
from echo_queue.reporting.trained_groups import TrainedGroups
from learner.batch_collector import BatchCollector
from learner.evaluation import rounds
from learner.evaluation.rounds import EvaluationRounds
from learner.export.exporter import Exporter
from learner.first_groups import FirstGroups
from learner.follower import Follower
from learner.housekeeper import Housekeeper
from learner.leader import Leader
from learner.losses.custom import custom_loss
from learner.model import device
from learner.model.loading import load_policy, load_reference
from learner.model.past_versions import PastVersions
from learner.model.policy import Policy
from learner.model.scorer import Score
from learner.publication import announcer, signing_key
from learner.publication.part_thread import PartThread
from learner.publication.publish_thread import Snapshot
from learner.publication.snapshot import take_share
from learner.publication.weight_broadcast import open_broadcast
from learner.ranks.order import Order
from learner.ranks.place import ALONE, Place
from learner.ranks.rendezvous import join, leave
from learner.ranks.team import OtherRankError, Team
from learner.recovery import checkpoint
from learner.recovery.background_saver import BackgroundSaver
from learner.recovery.manifest import CheckpointManifest
from learner.recovery.resume import resume
from learner.run_start import FINISHED, begin, connect
from learner.selection.pairs import select_samples
from learner.update import UpdateResult, learn

log = logging.getLogger(__name__)


def train(config: Config, stop: threading.Event, place: Place = ALONE) -> bool:
    """Trains until the prompts are exhausted, `learner.max_updates` is reached, or `stop` is set on any rank.

    Returns whether the run is finished, as far as this rank knows: rank 0 does.
    Raises `OtherRankError` for what another rank explains to the user.
    """
    if config.learner.deterministic:
        device.compute_deterministically()
    torch.set_num_threads(config.learner_threads)
    torch.manual_seed(config.run.seed)
    store = connect_store(config, "learner")
    store.deadline_s = config.queue.stall_deadline_s
    where = device.choose(config.learner.device, place)
    team = join(config, place, where, stop)
    try:
        finished = _train_together(config, stop, store, team, where)
    except ConfigError as error:
        if team.first:
            raise
        raise OtherRankError(*error.problems) from error  # all have the same configuration and the same base model
    leave()
    return finished


def _train_together(config: Config, stop: threading.Event, store: ObjectStore, team: Team, where: torch.device) -> bool:
    if config.learner.loss:
        custom_loss(config.learner.loss)  # before anything of the run is changed
    with ExitStack() as loading:
        if team.share(lambda: begin(config, store, loading)) == FINISHED:
            team.settle()
            return team.first
        loop = open_loop(config, store, team, where)
        loop.leader.start()
    try:
        with LivenessThread("learner", loop.steps.trouble):
            loop.run(stop)
            team.settle()
    finally:
        loop.saver.close()
        loop.leader.close()
    return loop.leader.finished


class TrainingLoop:
    """The main thread of each rank. All ranks make the same calls in the same order, so their collectives meet."""

    def __init__(
        self,
        config: Config,
        team: Team,
        leader: Leader | Follower,
        *,
        policy: Policy,
        reference: Score | None,
        saver: BackgroundSaver,
    ) -> None:
        self.config, self.team, self.leader = config, team, leader
        self.steps = StepClock(config.learner.rank_deadline_s)
        self.policy, self.reference, self.saver = policy, reference, saver
        self.past = PastVersions(policy, config.staleness.s) if config.learner.needs_old else None

    def run(self, stop: threading.Event) -> None:
        """Carries out rank 0's orders until the last one."""
        for order in self.leader.orders(stop):
            result = self._learn(order)
            trained_s = time.monotonic()
            # Before rank 0 waits for Redis: the others wait for it only as long as for a collective.
            snapshot = self._snapshot(order) if order.publish and self.leader.publishes(order) else None
            weights = self._whole_weights(order) if order.export else {}
            self.leader.report(order, result, trained_s, snapshot)
            if result:
                self.saver.make_room(self.policy.pieces)  # which have moments from the first step on
            self.leader.commit(self.saver.wait() if order.save else self.saver.finished())
            if order.save:
                self.policy.keep_until(self.saver.begin(order.version, self.policy.pieces(), self.leader.history()))
            if order.export:
                self.leader.finish(weights)

    def _snapshot(self, order: Order) -> Snapshot:
        """Returns this rank's share of the version."""
        policy, part_bytes = self.policy, self.config.weights.part_bytes
        with self.team.together(f"share version {order.version.number} out"):
            share = take_share(policy.published(), policy.dtype, self.team, part_bytes, on_host=policy.offload)
            return Snapshot.now(order.version, share)

    def _whole_weights(self, order: Order) -> Mapping[str, Tensor]:
        """Returns rank 0 a copy of the weights; the others have none."""
        with self.team.together(f"put version {order.version.number} together"):
            return self.policy.snapshot()

    def _learn(self, order: Order) -> UpdateResult | None:
        """Trains the order's groups; None if there are none."""
        if not order.groups:
            return None
        learner, temperature = self.config.learner, self.config.rollout.temperature
        number = order.version.number
        groups = order.groups + order.reused
        selection, seed = self.config.selection, self.config.run.seed
        select = partial(select_samples, selection=selection, seed=seed, number=number)
        return learn(
            self.policy,
            groups,
            number,
            learner,
            temperature,
            reference=self.reference,
            past=self.past,
            select=select,
            step=self.steps.step,
        )


def open_loop(config: Config, store: ObjectStore, team: Team, where: torch.device) -> TrainingLoop:
    """Loads the newest checkpoint. Rank 0 resumes the run at it: from then on every older learner of it is fenced."""
    with team.together("load the model"):
        policy = load_policy(config, where, team)
        reference = _reference(config, policy) if config.learner.kl else None
    restored = checkpoint.restore(store, team, policy.restore)
    groups = TrainedGroups(config)
    saver = BackgroundSaver(store, team, config.queue.stall_deadline_s, partial(groups.send, store))
    leader: Leader | Follower
    if team.first:
        leader = _open_leader(config, store, team, policy=policy, saver=saver, groups=groups, restored=restored)
    else:
        leader = Follower(team, PartThread(config, store, team))
    return TrainingLoop(config, team, leader, policy=policy, reference=reference, saver=saver)


def _reference(config: Config, policy: Policy) -> Score:
    """Returns what scores by the base model: a policy with adapters itself, else a model of its own."""
    return policy.score_base if policy.adapters else load_reference(config, policy.device, policy.team)


def _open_leader(
    config: Config,
    store: ObjectStore,
    team: Team,
    *,
    policy: Policy,
    saver: BackgroundSaver,
    groups: TrainedGroups,
    restored: CheckpointManifest | None,
) -> Leader:
    """Begins a lineage at the restored checkpoint (None: at the base model) and brings the queue to it."""
    caller = connect(config)
    monitor = Monitor(caller)
    signer = signing_key.signer(config)
    patience = max(config.learner.batch_groups, PATIENCE)
    validator = GroupValidator(GroupLimits.of(config, policy.vocabulary), BASE, patience)
    queue = LearnerQueue(caller, Payloads.of(config, store, validator=validator))
    before = monitor.status()
    rules = RunRules.of(config)
    newest = resume(queue, store, rules, restored, before.window)
    for change in differences(rules, before.rules):
        log.info("%s %s; from now on the run has the value of here", change.where, change.what)
    queue.publish_keys(signing_key.run_keys(signer))
    before_this = monitor.newest_update()
    queue.record(unrecorded(config.run.dir / "metrics.jsonl", before_this.version if before_this else BASE))
    announcements = LearnerQueue(caller.within(announcer.DEADLINE_S), lineage=newest.lineage)
    version = Version(newest.lineage, newest.version)
    housekeeping = connect(config)
    exporter = Exporter(config, version)
    evaluations = EvaluationRounds(
        config,
        housekeeping.within(rounds.DEADLINE_S),
        _hasty_store(config),
        vocabulary=policy.vocabulary,
        begun=version,
        on_suspend=validator.suspended.add,
        on_best=exporter.found_best,
    )

    def needed() -> Collection[Version]:
        judged = {evaluations.asked} if config.export.best and evaluations.asked else set()
        return {*exporter.needed, *judged}

    broadcast = open_broadcast(
        config,
        store,
        team,
        queue,
        announcements=announcements,
        signer=signer,
        ask_ahead=evaluations.ask_ahead,
        published=exporter.published,
        needed=needed,
    )
    first_groups = FirstGroups(monitor)

    def observe(status: Status) -> None:
        broadcast.observe(status)
        evaluations.observe(status)

    housekeeper = Housekeeper(housekeeping, store, config.queue.lease_s, observe)

    def check() -> None:
        first_groups.check()
        broadcast.check()
        saver.check()
        housekeeper.check()
        exporter.check()

    return Leader(
        config,
        team,
        queue,
        monitor,
        saver=saver,
        groups=groups,
        newest=newest,
        broadcast=broadcast,
        collector=BatchCollector(
            config, queue, monitor, validator, version=version, published=broadcast.has_published, check=check
        ),
        housekeeper=housekeeper,
        evaluations=evaluations,
        exporter=exporter,
        check=check,
        write_model=policy.save_pretrained,
    )


def _hasty_store(config: Config) -> ObjectStore:
    """Returns the store for evaluations, for which the housekeeper waits."""
    store = connect_store(config, "learner")
    store.deadline_s = rounds.DEADLINE_S
    return store
