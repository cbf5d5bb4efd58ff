"""The duties of every Celery worker besides its tasks: it sends lost chunks again, gives no message back, and shows
that its loop runs.
"""

import logging
import random
import signal
from contextlib import suppress
from typing import Any

from celery import bootsteps
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from echo_queue.config import Config
from echo_queue.connections.connect import require_users
from echo_queue.errors import EchoQueueError, ServiceError
from echo_queue.launch.liveness import EVERY_S, LivenessFile
from echo_queue.queue import SubmitterQueue
from echo_queue.queue.counts import agreeing, counted
from echo_queue.submission.celery.reconciler import Reconciler
from echo_queue.submission.configured_sets import held_out_sets, trained_sets
from echo_queue.submission.declaration import check_first_rows

RECONCILE_DEADLINE_S = 1.0
"""The reconciler runs within the Celery worker's own loop, which must not be blocked for long."""

OUTLIVES = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
"""Whether SIGHUP is ignored, as under nohup. This module is imported before Celery sets its handlers."""

log = logging.getLogger(__name__)


class ReconcilerStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Sends lost chunks again every `submission.reconcile_s`, not at the same time as other workers.

    It is a step of the consumer because a lost connection may empty the worker's timer; each new connection starts the
    step again.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        config: Config = consumer.app.echo_queue
        self._every_s = config.submission.reconcile_s
        queue = SubmitterQueue.connect(config, RECONCILE_DEADLINE_S)
        self._reconciler = Reconciler(config, queue, consumer.app)
        self._entry: Any = None

    def start(self, consumer: Any) -> None:
        self._entry = consumer.timer.call_after(self._every_s * random.uniform(0.5, 1.0), self._reconcile, (consumer,))

    def stop(self, consumer: Any) -> None:
        if self._entry is not None:
            self._entry.cancel()

    def _reconcile(self, consumer: Any) -> None:
        try:
            if lost := self._reconciler.reconcile():
                were, have = agreeing(lost, "was", "were"), agreeing(lost, "has", "have")
                log.warning("%s lost in the broker and %s been sent again", counted(lost, "chunk", were, were), have)
        except EchoQueueError as error:
            log.warning("cannot look for lost chunks now\n%s", error)
        finally:
            self.start(consumer)


class UsersStep(bootsteps.Step):  # type: ignore[misc]
    """Ends a worker whose Redis users are refused: Celery would try to connect for ever, and name no variable."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        try:
            require_users(worker.app.echo_queue, "celery", "submitter")
        except ServiceError as error:
            # Celery would wrap any exception in a page of traceback.
            raise SystemExit(f"echo-queue: {error}") from None


class ReadAheadStep(bootsteps.Step):  # type: ignore[misc]
    """Reads the first configured prompts before the worker's processes are forked, so that none of them imports what
    that takes once its first chunk waits. Whoever submits prompts is told what is wrong with them."""

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        config: Config = worker.app.echo_queue
        for prompts in (*held_out_sets(config), *trained_sets(config)):
            with suppress(EchoQueueError):
                check_first_rows(config, prompts)


class LivenessStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Shows that the worker's loop runs. The loop stands while the broker is away, and the worker counts as unhealthy.

    A restart loses nothing then: the reconciler sends what the worker had begun again.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._file = LivenessFile("submission")
        self._entry: Any = None

    def start(self, consumer: Any) -> None:
        self._file.beat()
        self._entry = consumer.timer.call_repeatedly(EVERY_S, self._file.beat)

    def stop(self, consumer: Any) -> None:
        if self._entry is not None:
            self._entry.cancel()


class HangupStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Ends the worker on SIGHUP as on SIGTERM, unless it is to outlive its terminal. Celery would begin anew."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if OUTLIVES else signal.getsignal(signal.SIGTERM))


class FreeingQoS(kombu_redis.QoS):  # type: ignore[misc]
    """Counts a message as done even if its acknowledgement was lost.

    Kombu 5.7 keeps counting such a message as unfinished, and with a prefetch of one the worker never takes another.
    """

    def ack(self, delivery_tag: str) -> None:
        try:
            self._remove_from_indices(delivery_tag).execute()
        finally:
            virtual.QoS.ack(self, delivery_tag)


class LeaveUnacked(bootsteps.StartStopStep):  # type: ignore[misc]
    """Keeps a closing connection from giving messages back, which the reconciler sends again; and sets `FreeingQoS`.

    Kombu 5.7 would give them back on a connection that it has already released if Redis is still away. The
    AttributeError ends the worker: about every fourth restart of Redis did so.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        channel = consumer.connection.default_channel
        channel.do_restore = False
        channel.QoS = FreeingQoS
