"""The messages in Celery's broker: what they are called, sending them, counting those that nobody has taken."""

import random
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from celery import Celery
from kombu.exceptions import LimitExceeded, OperationalError
from redis import RedisError

from echo_queue import failpoints
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import Chunk

CHANNEL = "promptsets"
EXPAND_CHUNK = "echo_queue.submission.expand_chunk"
SUBMIT_PROMPT_SET = "echo_queue.submission.submit_prompt_set"
BROKEN = (OperationalError, LimitExceeded, RedisError, AttributeError)
"""The last is what Kombu makes of a channel that was closed under it."""
PATIENCE_S = 5.0
PAUSE_S = 0.2


def send(app: Celery, name: str, source: str, chunks: Iterable[Chunk]) -> None:
    """One message per chunk. Raises `ServiceError` if the broker cannot be reached."""
    for chunk in chunks:
        rows = {"first": chunk.first, "last": chunk.first + chunk.count - 1}
        message = {"set": name, "number": chunk.number, "source": source, **rows}
        failpoints.step("send chunk", partial(_send, app, message), (name, chunk.number))


def _send(app: Celery, message: dict[str, Any]) -> None:
    """Tries again what gets past Celery's own retries: a connection that breaks while it is being fixed."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            with app.producer_pool.acquire(block=True, timeout=PATIENCE_S) as producer:
                app.send_task(EXPAND_CHUNK, kwargs=message, producer=producer)
                return
        except BROKEN as error:
            if time.monotonic() > give_up:
                fix = "check redis.url and the rights of its user `celery`, then submit again: that adds nothing twice"
                raise ServiceError(Problem("Celery's broker", str(error), fix)) from None
        time.sleep(random.uniform(0, PAUSE_S))


def messages_waiting(app: Celery) -> int:
    """Messages in the broker that no worker has taken. Raises `ServiceError`."""
    try:
        with app.pool.acquire(block=True, timeout=PATIENCE_S) as connection:
            # Kombu's own passive declaration forgets the key prefix in one of its commands.
            count = connection.default_channel.client.llen
            return int(failpoints.step("count messages", partial(count, CHANNEL)))
    except BROKEN as error:
        raise ServiceError(Problem("Celery's broker", str(error), "check redis.url")) from None
