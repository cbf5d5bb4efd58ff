"""The Celery application of one run: its settings, each with its reason, and its two tasks.

Celery carries intent, never truth: a message names a chunk, the queue's ledger says whether there is
anything to do. A lost message is sent again by the reconciler; a message that comes twice changes nothing.
"""

import logging
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from kombu import Queue as Channel

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_store
from echo_queue.connections.endpoints import CELERY_PREFIX, celery_broker_url
from echo_queue.errors import ConfigError, EchoQueueError, Problem
from echo_queue.queue import SubmitterQueue
from echo_queue.submission.celery.messages import CHANNEL, EXPAND_CHUNK, SUBMIT_PROMPT_SET
from echo_queue.submission.celery.worker_steps import LeaveUnacked, ReconcilerStep
from echo_queue.submission.declaration import choose, place
from echo_queue.submission.expand import expand
from echo_queue.submission.length_limits import limits_of
from echo_queue.submission.shards import Writes

CONFIG_VARIABLE = "ECHO_QUEUE_CONFIG"
VISIBILITY_S = 900
"""A message that is taken and not begun waits behind one task at most; the longest is the scan of a very large set.
What a dead worker had taken comes back long before: the reconciler sends it again."""
SOCKET_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


def settings(config: Config) -> dict[str, Any]:
    return {
        "broker_url": celery_broker_url(config),
        "broker_connection_retry_on_startup": True,  # services may come up after us
        "broker_transport_options": _sentinel(config)
        | {
            "global_keyprefix": CELERY_PREFIX.format(run=config.run.name),  # what the ACL of `celery` allows
            "visibility_timeout": VISIBILITY_S,
            "unacked_restore_throttle": 1,  # otherwise only every tenth look restores anything
            "socket_timeout": SOCKET_TIMEOUT_S,  # a publish on a dead connection would wait for ever
            "socket_keepalive": True,
        },
        "visibility_timeout": VISIBILITY_S,  # the shortest of all places wins, so all say the same
        "task_default_queue": CHANNEL,
        "task_queues": [Channel(CHANNEL)],
        "task_create_missing_queues": False,
        # JSON only: a pickle from a broker is code from whoever can write there.
        "accept_content": ["json"],
        "task_serializer": "json",
        "event_serializer": "json",
        # Acknowledged when begun. Late acknowledgement would bring a chunk that kills its process back at once, for
        # ever; and with Kombu 5.7 one that ends while Redis restarts ends the whole worker. What a dead worker had
        # begun is sent again by the reconciler, at its own pace.
        "task_acks_late": False,
        # About as long as a restart of Redis takes; a message sent twice changes nothing.
        "task_publish_retry_policy": {
            "max_retries": 12,
            "interval_start": 0.1,
            "interval_step": 0.2,
            "interval_max": 1.0,
        },
        "task_ignore_result": True,  # the ledger in Redis is the result
        "task_store_errors_even_if_ignored": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,  # the chunk at hand may as well end
        "worker_prefetch_multiplier": 1,  # chunks are long; a worker hoards none that another could do
        "worker_soft_shutdown_timeout": 10.0,  # an impatient second signal still lets the chunk at hand end
        "worker_hijack_root_logger": False,
    }


def _sentinel(config: Config) -> dict[str, Any]:
    """The service's name, which a broker URL of Sentinels cannot carry."""
    parts = urlsplit(config.redis.url)
    return {"master_name": parts.path.strip("/").partition("/")[0]} if parts.scheme == "redis+sentinel" else {}


def build(config: Config) -> Celery:
    """The application of a run, with the tasks that this package names."""
    app = Celery("echo_queue", set_as_current=False)
    app.conf.update(settings(config))
    process = TaskConnections(config)

    def expand_chunk(set: str, number: int, source: str, first: int, last: int) -> None:
        """Chunk `number` of a set: rows first … last of `source`, for people to read; the ledger knows the rest."""
        limits = limits_of(Path(config.base_model), config.model.max_prompt_tokens)
        expand(process.queue(), process.store(), limits, set, number)

    def submit_prompt_set(source: str | None = None, set: str | None = None, **changes: Any) -> None:
        """Submits a prompt set; what is not given is as in the configuration's [prompts]."""
        try:
            sent = place(config, process.queue(), app, choose(config, source, set, **changes))
            log.info("set %s: %d prompts, %d chunks", sent.set, sent.prompts, sent.chunks)
        except EchoQueueError as error:
            log.error("set %s was not submitted\n%s", set or config.prompts.set, error)

    app.task(expand_chunk, name=EXPAND_CHUNK)
    app.task(submit_prompt_set, name=SUBMIT_PROMPT_SET)
    app.steps["consumer"].update((LeaveUnacked, ReconcilerStep))
    app.echo_queue = config
    return app


def from_environment() -> Celery:
    """The application of the run that `ECHO_QUEUE_CONFIG` names. Raises `ConfigError`."""
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        fix = f"export {CONFIG_VARIABLE}=/path/to/run.toml"
        raise ConfigError(Problem(CONFIG_VARIABLE, "is not set, so Celery does not know which run it serves", fix))
    return build(load(Path(path)))


class TaskConnections:
    """What the tasks of one process share. Celery forks, and no connection may be used on both sides of a fork."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._opened: tuple[int, SubmitterQueue, Writes] | None = None

    def queue(self) -> SubmitterQueue:
        return self._open()[1]

    def store(self) -> Writes:
        return self._open()[2]

    def _open(self) -> tuple[int, SubmitterQueue, Writes]:
        if self._opened is None or self._opened[0] != os.getpid():
            queue, store = SubmitterQueue.connect(self._config), connect_store(self._config, "submitter")
            self._opened = os.getpid(), queue, store
        return self._opened
