"""The messages in Celery's broker: what they are called, sending them, counting those that nobody has taken."""

from collections.abc import Iterable
from functools import partial

from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError

from echo_queue import doors
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import Chunk

CHANNEL = "promptsets"
EXPAND_CHUNK = "echo_queue.submission.expand_chunk"
SUBMIT_PROMPT_SET = "echo_queue.submission.submit_prompt_set"


def send(app: Celery, name: str, source: str, chunks: Iterable[Chunk]) -> None:
    """One message per chunk. Raises `ServiceError` if the broker cannot be reached."""
    try:
        with app.producer_pool.acquire(block=True) as producer:
            for chunk in chunks:
                rows = {"first": chunk.first, "last": chunk.first + chunk.count - 1}
                message = {"set": name, "number": chunk.number, "source": source, **rows}
                send_one = partial(app.send_task, EXPAND_CHUNK, kwargs=message, producer=producer)
                doors.take("send chunk", send_one, (name, chunk.number))
    except (OperationalError, RedisError) as error:
        mend = "check redis.url and the rights of its user `celery`, then submit again: that adds nothing twice"
        raise ServiceError(Problem("Celery's broker", str(error), mend)) from None


def messages_waiting(app: Celery) -> int:
    """Messages in the broker that no worker has taken. Raises `ServiceError`."""
    try:
        with app.pool.acquire(block=True) as connection:
            # Kombu's own passive declaration forgets the key prefix in one of its commands.
            count = connection.default_channel.client.llen
            return int(doors.take("count messages", partial(count, CHANNEL)))
    except (OperationalError, RedisError) as error:
        raise ServiceError(Problem("Celery's broker", str(error), "check redis.url")) from None
