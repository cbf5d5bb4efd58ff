"""Submission of prompt sets by Celery: `submit` sends a set, `celery -A echo_queue.submission worker` expands it.

Importing this package imports nothing that pip installed: the `celery` program puts the current folder first, which may
hold files of such names, until `__getattr__` has put it last. `submit_prompt_set` (a Celery task, for `.delay(…)`) and
`app` (the name that the `celery` program looks for) belong to the run that `ECHO_QUEUE_CONFIG` names.
"""

import sys
from typing import TYPE_CHECKING, Any

from echo_queue.errors import EchoQueueError
from echo_queue.submission.progress import Progress, Report, Submitted

if TYPE_CHECKING:
    from celery import Celery, Task

    from echo_queue.config import Config

    app: Celery
    submit_prompt_set: Task

__all__ = ["Progress", "Submitted", "submit", "submit_prompt_set"]


def submit(
    config: "Config",
    source: str | None = None,
    set: str | None = None,
    *,
    wait: bool = True,
    progress: Report | None = None,
    within_run: bool = False,
) -> Submitted:
    """Submits the configured prompts, of all components, and every held-out set. With `wait`, returns once all arrived.

    `source`, `set`: only this source is submitted, under this name; what is not given is as configured.

    `within_run`: as `echo-queue run` does it, which a changed source of a set that has arrived does not stop
    (`declaration.declare_and_send`). Raises `PromptError` for prompts that cannot be read or are too long,
    `ServiceError`, and `DeadlineError` when nothing arrives in the backlog for `submission.deadline_s`.
    """
    from echo_queue.connections.connect import require_users
    from echo_queue.queue import SubmitterQueue
    from echo_queue.submission.arrival import arrive
    from echo_queue.submission.celery.app import build
    from echo_queue.submission.configured_sets import chosen
    from echo_queue.submission.declaration import declare_and_send, together

    app, queue = build(config), SubmitterQueue.connect(config)
    require_users(config, "celery")  # before anything is declared that could then not be sent
    report = progress or (lambda _: None)
    sent = declare_and_send(config, queue, app, chosen(config, source, set), report, within_run=within_run)
    for one in sent if wait else ():
        arrive(config, queue, app, one.set, report)
    return together(config, sent)


def __getattr__(name: str) -> Any:
    if name not in ("app", "submit_prompt_set"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from echo_queue.launch.import_path import current_folder_last

    if "celery.bin.celery" in sys.modules:
        current_folder_last()
    from echo_queue.submission.celery.app import from_environment
    from echo_queue.submission.celery.messages import SUBMIT_PROMPT_SET

    if name == "app":
        try:
            globals()["app"] = from_environment()
        except EchoQueueError as error:
            # The `celery` program would wrap any exception in a page of traceback.
            raise SystemExit(f"echo-queue: {error}") from None
    else:
        running = globals().get("app") or from_environment()
        globals()["submit_prompt_set"] = running.tasks[SUBMIT_PROMPT_SET]
    return globals()[name]
