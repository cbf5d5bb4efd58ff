"""What every Celery worker of ours does besides its tasks."""

import logging
import random
from typing import Any

from celery import bootsteps
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from echo_queue.config import Config
from echo_queue.errors import EchoQueueError
from echo_queue.queue import SubmitterQueue
from echo_queue.submission.celery.reconciler import Reconciler

PATIENCE_S = 1.0
"""A look happens within the Celery worker's own loop, which must not stand still for long."""

log = logging.getLogger(__name__)


class ReconcilerStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Looks for lost chunks every `submission.reconcile_s`, not at the same time as other workers.

    A step of the consumer, because a lost connection may empty the worker's timer; each new one starts this again.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        config: Config = consumer.app.echo_queue
        self._every_s = config.submission.reconcile_s
        queue = SubmitterQueue.connect(config, PATIENCE_S)
        self._reconciler = Reconciler(queue, consumer.app)
        self._entry: Any = None

    def start(self, consumer: Any) -> None:
        self._entry = consumer.timer.call_after(self._every_s * random.uniform(0.5, 1.0), self._look, (consumer,))

    def stop(self, consumer: Any) -> None:
        if self._entry is not None:
            self._entry.cancel()

    def _look(self, consumer: Any) -> None:
        try:
            if lost := self._reconciler.look():
                log.warning("%d chunks had got lost and were sent again", lost)
        except EchoQueueError as error:
            log.warning("cannot look for lost chunks now\n%s", error)
        finally:
            self.start(consumer)


class FreeingQoS(kombu_redis.QoS):  # type: ignore[misc]
    """A message whose acknowledgement was lost is no longer at hand, all the same.

    Kombu 5.7 goes on counting it, and with a prefetch of one such a worker never takes another message.
    """

    def ack(self, delivery_tag: str) -> None:
        try:
            self._remove_from_indices(delivery_tag).execute()
        finally:
            virtual.QoS.ack(self, delivery_tag)


class LeaveUnacked(bootsteps.StartStopStep):  # type: ignore[misc]
    """A closing connection gives no messages back: the reconciler sends them again. And see `FreeingQoS`.

    Kombu 5.7 tries to on a connection that it has let go of already if Redis is still away, and the
    AttributeError ends the worker: about every fourth restart of Redis did so.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        channel = consumer.connection.default_channel
        channel.do_restore = False
        channel.QoS = FreeingQoS
