"""The Celery application of one run: its settings, each with its reason, and its two tasks.

Celery carries intent, never truth: a message names a chunk, and Redis says whether that chunk is still to be expanded.
The reconciler sends a lost message again; a message that arrives twice changes nothing.
"""

import logging
import os
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from celery import Celery, Task
from celery.result import AsyncResult
from kombu import Queue as Channel

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.connect import CONNECT_TIMEOUT_S, connect_store
from echo_queue.connections.endpoints import CELERY_PREFIX, celery_broker_url, own_store, redis_endpoint
from echo_queue.errors import ConfigError, EchoQueueError, Problem, PromptError, ServiceError
from echo_queue.queue import SubmitterQueue
from echo_queue.queue.counts import counted
from echo_queue.submission.celery.explicit import application
from echo_queue.submission.celery.messages import CHANNEL, EXPAND_CHUNK, SUBMIT_PROMPT_SET
from echo_queue.submission.celery.worker_steps import (
    HangupStep,
    LeaveUnacked,
    LivenessStep,
    ReadAheadStep,
    ReconcilerStep,
    UsersStep,
)
from echo_queue.submission.configured_sets import chosen
from echo_queue.submission.declaration import declare_and_send, together
from echo_queue.submission.expand import expand
from echo_queue.submission.length_limits import limits_for
from echo_queue.submission.needed_columns import needed_columns
from echo_queue.submission.shards import Writes
from echo_queue.submission.sources.registry import absolute

CONFIG_VARIABLE = "ECHO_QUEUE_CONFIG"
VISIBILITY_S = 900
"""A message that was taken and not begun waits behind at most one task, of which the longest is the scan of a very
large set. The messages of a dead worker come back long before this: the reconciler sends them again."""
SOCKET_TIMEOUT_S = 30.0
RESULT_KEPT_S = 86_400
"""How long whoever submitted a set by `.delay` may ask for the result."""

log = logging.getLogger(__name__)


class SubmissionError(Exception):
    """A set was not submitted. The message names each problem and its fix."""


class SubmitTask(Task):  # type: ignore[misc]  # Celery has no types
    """The task of a submission, for those who call `.delay`: a relative path is one of theirs."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> AsyncResult:
        positional, named = list(args or ()), dict(kwargs or {})
        if positional:
            positional[0] = absolute(positional[0])
        elif "source" in named:
            named["source"] = absolute(named["source"])
        send = partial(super().apply_async, positional, named, **options)
        return cast(AsyncResult, failpoints.step("send submission", send))


def settings(config: Config) -> dict[str, Any]:
    """Returns Celery's settings for a run."""
    return {
        "broker_url": celery_broker_url(config),
        "broker_connection_retry_on_startup": True,  # the services may start after this worker
        "broker_transport_options": _sentinel(config)
        | {
            "global_keyprefix": CELERY_PREFIX.format(run=config.run.name),  # the ACL of `celery` allows nothing else
            "visibility_timeout": VISIBILITY_S,
            "unacked_restore_throttle": 1,  # otherwise only every tenth check restores anything
            "socket_timeout": SOCKET_TIMEOUT_S,  # without it a publish on a dead connection would wait for ever
            "socket_keepalive": True,
        },
        "visibility_timeout": VISIBILITY_S,  # Celery takes the shorter of the two, so both are the same
        "task_default_queue": CHANNEL,
        "task_queues": [Channel(CHANNEL)],
        "task_create_missing_queues": False,
        # JSON only: a pickle is code, and every client that can write to the broker could send one.
        "accept_content": ["json"],
        "task_serializer": "json",
        "event_serializer": "json",
        # Acknowledged when begun. Late acknowledgement would bring back at once, for ever, a chunk that kills its
        # process; and with Kombu 5.7 a chunk that ends while Redis restarts would end the whole worker. The reconciler
        # sends the chunks that a dead worker had begun again, at its own pace.
        "task_acks_late": False,
        # About as long as a restart of Redis takes; a message sent twice changes nothing.
        "task_publish_retry_policy": {
            "max_retries": 12,
            "interval_start": 0.1,
            "interval_step": 0.2,
            "interval_max": 1.0,
        },
        "task_ignore_result": True,  # of a chunk the result is its state in Redis; a submission says so itself
        "task_store_errors_even_if_ignored": False,
        "result_backend": celery_broker_url(config),
        "result_backend_transport_options": {"global_keyprefix": CELERY_PREFIX.format(run=config.run.name)}
        | _sentinel(config),
        "result_expires": RESULT_KEPT_S,
        "result_serializer": "json",
        "worker_cancel_long_running_tasks_on_connection_loss": False,  # the current chunk may as well end
        "worker_prefetch_multiplier": 1,  # chunks are long: a worker takes none that another worker could expand
        "worker_soft_shutdown_timeout": 10.0,  # a second signal still lets the current chunk end
        "worker_hijack_root_logger": False,
    }


def _sentinel(config: Config) -> dict[str, Any]:
    """Returns the transport options of Sentinels, which a broker's URL cannot carry: the service's name, and the login
    at the Sentinels themselves."""
    parts = urlsplit(config.redis.url)
    if parts.scheme != "redis+sentinel":
        return {}
    login = redis_endpoint(config, "celery").sentinel_login() | {"socket_timeout": CONNECT_TIMEOUT_S}
    return {"master_name": parts.path.strip("/").partition("/")[0], "sentinel_kwargs": login}


def build(config: Config) -> Celery:
    """Returns the Celery application of a run, with its two tasks."""
    app = application("echo_queue", settings(config))
    connections = TaskConnections(config)

    def expand_chunk(set: str, number: int, source: str, first: int, last: int) -> None:
        """Expands chunk `number` of a set. `source`, `first` and `last` are for people to read; Redis has the rest."""
        limits = limits_for(config, set)
        needed = needed_columns(config.environment_of(set))
        own, bucket = config.source_of(set), own_store(config, "submitter")
        expand(connections.queue(), connections.store(), limits, set, number, needed=needed, own=own, bucket=bucket)

    def submit_prompt_set(source: str | None = None, set: str | None = None, **changes: Any) -> dict[str, Any]:
        """Submits a prompt set; arguments that are not given are as in the configuration's [prompts], or as in that of
        its evaluations or components to which the name `set` belongs. Without any argument, it submits the prompts of
        all components, and the held-out sets as well.

        Returns the fields of `Submitted`. Raises `SubmissionError`, in the sender's `.get()` as well.
        """
        try:
            sent = declare_and_send(config, connections.queue(), app, chosen(config, source, set, **changes))
        except EchoQueueError as error:
            known = error.set if isinstance(error, PromptError) else ""
            name = known or set or config.prompts.set
            if not isinstance(error, ServiceError):
                first = error.problems[0]
                with suppress(ServiceError):
                    connections.queue().tell_refusal(name, f"{first.where}: {first.what}")
            raise SubmissionError(f"set {name} was not submitted\n{error}") from None
        for one in sent:
            log.info("set %s: %s, %s", one.set, counted(one.prompts, "prompt"), counted(one.chunks, "chunk"))
        return asdict(together(config, sent))

    app.task(expand_chunk, name=EXPAND_CHUNK)
    app.task(submit_prompt_set, name=SUBMIT_PROMPT_SET, base=SubmitTask, ignore_result=False)
    app.steps["consumer"].update((HangupStep, LeaveUnacked, LivenessStep, ReconcilerStep))
    app.steps["worker"].update((UsersStep, ReadAheadStep))
    app.echo_queue = config
    return app


def from_environment() -> Celery:
    """Returns the application of the run that `ECHO_QUEUE_CONFIG` names. Raises `ConfigError`."""
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        fix = f"run `export {CONFIG_VARIABLE}=/path/to/run.toml`"
        raise ConfigError(Problem(CONFIG_VARIABLE, "is not set, so Celery does not know which run it serves", fix))
    return build(load(Path(path)))


class TaskConnections:
    """The connections that all tasks of one process share.

    Celery forks, and no connection may be used on both sides of a fork: each process opens its own.
    """

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
