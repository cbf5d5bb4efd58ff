"""The part of rank 0 alone: it decides what all ranks do, and speaks with Redis, the workers and the files of the run.

- Safety rests on the order: the queue knows a version (advance) before it is published, a checkpoint is durable before
  its groups are committed, and the final model is written before the run is marked finished. A version that was
  published and then lost with its learner is abandoned by the next learner's lineage.
- Versions are published, and checkpoints saved, by threads beside the training loop, of copies of the state.
- Nothing older than S updates is trained, and nothing is trained twice: what counts as trained is what the newest
  checkpoint and its ancestors hold.
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import NamedTuple

from torch import Tensor

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.errors import EchoQueueError, Problem, SetBackError
from echo_queue.models.exported import temporary_of
from echo_queue.models.hub import base_folder
from echo_queue.queue import LearnerQueue, Monitor, staleness_rules
from echo_queue.queue.counts import counted
from echo_queue.records import Group, Version
from echo_queue.reporting.components import is_cut
from echo_queue.reporting.metrics import FLAT_UPDATES, MetricsLog, cut_off
from echo_queue.reporting.run_record import record_of
from echo_queue.reporting.trained_groups import TrainedGroups
from learner.batch_collector import Batch, BatchCollector, Pause
from learner.diagnostics.guard import Guard
from learner.evaluation.rounds import EvaluationRounds
from learner.export.exporter import Exporter
from learner.export.model_folder import add_companions, put_in_place
from learner.housekeeper import Housekeeper
from learner.publication.publish_thread import Snapshot, publication_period
from learner.publication.weight_broadcast import WeightBroadcast
from learner.ranks.order import NOT_NOW, NOW, Order, send
from learner.ranks.team import Team
from learner.recovery.background_saver import BackgroundSaver
from learner.recovery.manifest import CheckpointManifest, History
from learner.selection.reuse import ReuseBuffer
from learner.update import UpdateResult
from learner.update_metrics import Seconds, describe

log = logging.getLogger(__name__)

SMOOTHING = 0.2
"""Weight of the newest measurement of T_train."""

WriteModel = Callable[[Path, Mapping[str, Tensor]], None]
"""Writes weights, with their configuration, as a Hugging Face model."""


class Clock(NamedTuple):
    """Instants of the current update, on the monotonic clock. `save_s`: the seconds that saving took before it."""

    began: float = 0.0
    gathered: float = 0.0
    trained: float = 0.0
    save_s: float = 0.0


class Leader:
    """Decides and reports. The main thread calls every method.

    `newest`: the checkpoint at which the queue's lineage begins. `check` raises the error that ended a thread.
    """

    def __init__(
        self,
        config: Config,
        team: Team,
        queue: LearnerQueue,
        monitor: Monitor,
        *,
        saver: BackgroundSaver,
        groups: TrainedGroups,
        newest: CheckpointManifest,
        broadcast: WeightBroadcast,
        collector: BatchCollector,
        housekeeper: Housekeeper,
        evaluations: EvaluationRounds,
        exporter: Exporter,
        check: Callable[[], None],
        write_model: WriteModel,
    ) -> None:
        self._config, self._team, self._queue, self._monitor = config, team, queue, monitor
        self._saver, self._newest, self._window = saver, newest, newest.window
        self.broadcast, self.collector, self._housekeeper = broadcast, collector, housekeeper
        self._evaluations, self._exporter = evaluations, exporter
        self._check, self._write_model = check, write_model
        self._metrics, self._trained_groups = MetricsLog(config.run.dir / "metrics.jsonl"), groups
        self._version = Version(newest.lineage, newest.version)
        self._handed_over = -1
        """The number of the version handed over for publication last."""
        self._saved, self._saved_s = self._version.number, time.monotonic()
        """The number of the version of which a checkpoint was begun last, and when that was."""
        self._trained: list[str] = []
        """Ids of the groups trained since that version."""
        self._guard, self._alarm = Guard(config.learner.guard, config.staleness.s + 1), ""
        self._batch = Batch([], 0.0, 0)
        self._reuse = ReuseBuffer(config)
        self._cut_updates = 0
        """The number of the last updates, in a row, whose samples were cut off."""
        self._clock = Clock()
        self._t_train_s = 0.0
        self.finished = False
        """Whether this learner has marked the run finished."""

    def start(self) -> None:
        """Starts the threads that work beside the main one."""
        self._housekeeper.start()
        self.broadcast.start()
        if self._exporter.configured:
            self._exporter.start()

    def close(self) -> None:
        """Ends those threads."""
        self._housekeeper.close()
        self.broadcast.close()
        self._exporter.close()

    # What is next -----------------------------------------------------------------------------------------------------

    def orders(self, stop: Event) -> Iterator[Order]:
        """Yields what all ranks do next until the run is finished or `stop` is set; what is trained then is committed.

        Each order must be carried out before the next one is asked for.
        """
        for order in self._orders(stop):
            send(self._team, order)
            yield order
        send(self._team, None)

    def _orders(self, stop: Event) -> Iterator[Order]:
        lineage, number = self._version
        in_hand = len(self.collector.pending)
        log.info("lineage %d begins at version %d with %s in hand", lineage, number, counted(in_hand, "group"))
        yield Order(self._version, publish=True)
        while not stop.is_set():
            yield from self._updates(stop)
            if self._trained:
                yield Order(self._version, save=True)
            self.commit(self._saver.wait())
            if not stop.is_set() and (self._evaluations.configured or self._exporter.configured):
                yield from self._settle_last(stop)
            if not stop.is_set():
                yield Order(self._version, publish=self._handed_over < self._version.number, export=True)
                if self.finished:
                    return
                self._evaluations.go_on()
        self.broadcast.wait()
        log.info("stopped at version %d; a restart continues", self._version.number)

    def _settle_last(self, stop: Event) -> Iterator[Order]:
        """Publishes the last version, and waits until it is evaluated and exported, or `stop` is set."""
        self.broadcast.wait()
        if self._handed_over < self._version.number:
            yield Order(self._version, publish=True)
            self.broadcast.wait()
        if self._evaluations.configured:
            self._evaluations.settle(self._version, stop, self._check)
        self._exporter.settle(stop, self._check)

    def _updates(self, stop: Event) -> Iterator[Order]:
        """Yields updates until the prompts are exhausted, `learner.max_updates` is reached, or `stop` is set."""
        save_s = 0.0
        while not stop.is_set() and not self._reached_max_updates():
            began = time.monotonic()
            batch = self.collector.gather(self._version.number, stop, self._publication_owed, self._uncommitted)
            if batch is Pause.publish:
                yield Order(self._version, publish=True)
                continue
            if batch is Pause.full or batch is Pause.idle:
                yield from self._commit_all(batch)
                continue
            self._batch = batch
            if stop.is_set() or not self._batch.groups:
                break
            reused = self._reuse.take(self._version.number)
            self._refuse_stale_groups(reused)
            self._clock = Clock(began, gathered=time.monotonic(), save_s=save_s)
            after = self._version._replace(number=self._version.number + 1)
            publish, save = self._publication_due(after.number), self._checkpoint_due(after.number)
            yield Order(after, tuple(self._batch.groups), reused, publish=publish, save=save)
            save_s = time.monotonic() - self._clock.trained

    def _commit_all(self, pause: Pause) -> Iterator[Order]:
        """Commits all that is trained, which leaves Redis then, with a checkpoint that would be due only later."""
        if pause is Pause.full:
            log.warning(
                "Redis is at maxmemory while an update waits for groups: a checkpoint is saved now, so that what is"
                " trained leaves Redis. Raise maxmemory, or lower learner.checkpoint_updates or queue.inline_max_bytes"
            )
        else:
            log.info("all prompts are trained: the run is kept open (run.keep_open) and waits for more")
        if self._trained:
            yield Order(self._version, save=True)
        self.commit(self._saver.wait())

    def _uncommitted(self) -> bool:
        """Returns whether a checkpoint could free memory: groups are trained, and no commit holds them yet."""
        return bool(self._trained) or self._saver.busy

    def _refuse_stale_groups(self, reused: Sequence[Group]) -> None:
        """Raises `EchoQueueError` if the queue returned a group beyond S, or one of these is."""
        number, s = self._version.number, self._config.staleness.s
        for group in (*self._batch.groups, *reused):
            if not staleness_rules.admissible(number, group.oldest, s):
                what = f"{group.task} has lag {number - group.oldest}, more than S = {s}"
                raise EchoQueueError(Problem("learner", what, "the queue broke its rules: please report this"))

    def _reached_max_updates(self) -> bool:
        return 0 < self._config.learner.max_updates <= self._version.number

    def _checkpoint_due(self, number: int) -> bool:
        """Returns whether a checkpoint is due once version `number` is trained, which takes about T_train."""
        settings = self._config.learner
        since_s = time.monotonic() + self._t_train_s - self._saved_s
        return 0 < settings.checkpoint_s <= since_s or number - self._saved >= settings.checkpoint_updates

    def _publication_owed(self) -> bool | None:
        """Returns whether the newest version is due and was left out: True once it can be published; None before."""
        if not self._publication_due(self._version.number):
            return False
        return True if self.broadcast.free else None

    def _publication_due(self, number: int) -> bool:
        return number - self._handed_over >= self._kappa()

    def _kappa(self) -> int:
        """Returns the number of updates per publication, as it is now."""
        kappa = self._config.staleness.kappa
        if kappa != "auto":
            return kappa
        # Before the first update has been timed, every version is published.
        s, t_train_s = self._config.staleness.s, self._t_train_s or float("inf")
        return publication_period(self.broadcast.t_bcast_s, t_train_s, s)

    def publishes(self, order: Order) -> bool:
        """Decides for all ranks whether the version is published now: not while another one still is.

        A version that is left out is due again with the next one, or once the learner waits for groups.
        """
        if order.export:
            self.broadcast.wait()
        return self._team.share(lambda: NOW if self.broadcast.free else NOT_NOW) == NOW

    # What was done ----------------------------------------------------------------------------------------------------

    def report(self, order: Order, result: UpdateResult | None, trained_s: float, snapshot: Snapshot | None) -> None:
        """Tells the queue, the publication and the records what was done, in the order on which safety rests.

        `result`: None if the order trained nothing. `trained_s`: when it was trained (monotonic clock). `snapshot`:
        what is published now; of several ranks, this one's share.
        """
        if result:
            self._advance(order, result, trained_s)
        if snapshot:
            self._hand_over(snapshot)
        if result:
            self._record(order, result)

    def _advance(self, order: Order, result: UpdateResult, trained_s: float) -> None:
        """Advances the queue to the version just trained; sets the window by how long the update waited for groups.

        The guard may allow less.
        """
        self._clock = self._clock._replace(trained=trained_s)
        t_train_s, batch = self._clock.trained - self._clock.gathered, self._batch
        self._version = order.version
        self._trained += [group.task for group in batch.groups]
        self._reuse.add(batch.groups)
        self._t_train_s += (t_train_s - self._t_train_s) * (SMOOTHING if self._t_train_s else 1.0)
        self._alarm = self._guard.look(result.sums.mean(result.sums.kl_behaviour))
        size, widest = self._config.learner.batch_groups, self._guard.widest
        self._window = staleness_rules.pace(self._window, batch.starved_s, t_train_s, batch.ready, size, widest=widest)
        self._queue.advance(self._version.number, len(batch.groups) - batch.skipped, self._window)

    def _hand_over(self, snapshot: Snapshot) -> None:
        self._handed_over = snapshot.version.number
        self.collector.handed_out(snapshot.version)
        self.broadcast.hand_over(snapshot)

    def _record(self, order: Order, result: UpdateResult) -> None:
        """Records the update in `metrics.jsonl`, the log and Redis, and keeps its groups, for people to inspect.

        It comes before the checkpoint, so that no committed update lacks its record.
        """
        began, gathered, trained, save_s = self._clock
        metrics = describe(
            order,
            result,
            Seconds(save_s, gathered - began, trained - gathered),
            alarm=self._alarm,
            window=self._window,
            t_bcast_s=self.broadcast.t_bcast_s,
            stored=self.broadcast.stored,
            kappa=self._kappa(),
            status=self._monitor.status(),
            config=self._config,
        )
        self._metrics.write(metrics)
        self._cut_updates = self._cut_updates + 1 if is_cut(metrics) else 0
        if self._cut_updates == FLAT_UPDATES:
            log.warning(cut_off(f"the last {FLAT_UPDATES} updates"))
        self._queue.record([record_of(metrics)])
        self._trained_groups.keep(order.version, order.groups)

    def history(self) -> History:
        """Returns the history of the checkpoint that begins now.

        Raises `SetBackError` if Redis no longer knows whose prompts were trained.
        """
        history = History(tuple(self._trained), self._newest.name, self._window, self._sets())
        self._saved, self._saved_s = self._version.number, time.monotonic()
        self._trained.clear()
        return history

    def _sets(self) -> Mapping[str, str]:
        """Returns the digests of all sets of which this checkpoint or an ancestor holds ids."""
        digests = self._queue.set_digests(sorted({task.rsplit("/", 2)[0] for task in self._trained}))
        if unknown := [name for name, digest in digests.items() if not digest]:
            what = f"Redis has forgotten the set {unknown[0]}, of which groups were trained"
            raise SetBackError(Problem("learner", what, "start the learner again: it goes on from its checkpoint"))
        return {**self._newest.sets, **digests}

    def commit(self, saved: CheckpointManifest | None) -> None:
        """Commits a durable checkpoint's groups, if there is one: the next learner's `resume` fixes a crash before it.

        Then the tensors of older checkpoints are removed.
        """
        if saved is None:
            return
        self._newest = saved
        self._queue.commit(saved.name, saved.trained)
        self._saver.prune(saved, self._config.learner.keep_checkpoints)

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Writes the final model and marks the run finished, unless more groups to train have come meanwhile."""
        self.broadcast.wait()
        folder = self._config.run.dir / "model"
        export(self._write_model, weights, base_folder(self._config), folder)
        self.finished = self._queue.finish(force=self._reached_max_updates())
        if self.finished:
            self._housekeeper.remove_partials()
            log.info("finished at version %d; the model is %s", self._version.number, folder)


def export(write: WriteModel, weights: Mapping[str, Tensor], base: str, folder: Path) -> None:
    """Writes the model with its tokenizer as a Hugging Face folder, which is whole or does not exist."""
    temporary = temporary_of(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    failpoints.step("write model", lambda: write(temporary, weights))
    failpoints.step("write tokenizer", lambda: add_companions(Path(base), temporary))
    put_in_place(temporary, folder)
