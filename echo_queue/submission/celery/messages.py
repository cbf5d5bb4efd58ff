"""The messages in Celery's broker: their names, sending them, and counting those that no worker has taken."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.exceptions import LimitExceeded, OperationalError
from redis import RedisError

from echo_queue import failpoints
from echo_queue.connections.retries import repeat
from echo_queue.connections.storage.errors import Unreachable
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import Chunk

if TYPE_CHECKING:
    from celery import Celery

CHANNEL = "promptsets"
EXPAND_CHUNK = "echo_queue.submission.expand_chunk"
SUBMIT_PROMPT_SET = "echo_queue.submission.submit_prompt_set"
BROKEN = (OperationalError, LimitExceeded, RedisError, AttributeError)
"""Errors of a broken connection. Kombu raises the last one on a channel that was closed while in use."""
SEND_DEADLINE_S = 5.0


def send(app: "Celery", name: str, source: str, chunks: Iterable[Chunk]) -> None:
    """Sends one message per chunk. Raises `ServiceError` if the broker cannot be reached."""
    for chunk in chunks:
        rows = {"first": chunk.first, "last": chunk.first + chunk.count - 1}
        message = {"set": name, "number": chunk.number, "source": source, **rows}
        about = name, chunk.number
        failpoints.step("send chunk", partial(repeat, partial(_send, app, message), SEND_DEADLINE_S), about)


def _send(app: "Celery", message: dict[str, Any]) -> None:
    """Sends one message. Raises `Unreachable` also if a connection breaks while it is restored, when Celery itself does
    not try again."""
    try:
        with app.producer_pool.acquire(block=True, timeout=SEND_DEADLINE_S) as producer:
            app.send_task(EXPAND_CHUNK, kwargs=message, producer=producer)
    except BROKEN as error:
        fix = "check redis.url and the rights of its user `celery`, then submit again: no chunk is added twice"
        raise Unreachable(Problem("Celery's broker", str(error), fix)) from None


def messages_waiting(app: "Celery") -> int:
    """Counts the messages in the broker that no worker has taken. Raises `ServiceError`."""
    try:
        with app.pool.acquire(block=True, timeout=SEND_DEADLINE_S) as connection:
            # Kombu's own passive declaration forgets the key prefix in one of its commands.
            count = connection.default_channel.client.llen
            return int(failpoints.step("count messages", partial(count, CHANNEL)))
    except BROKEN as error:
        raise ServiceError(Problem("Celery's broker", str(error), "check redis.url")) from None
