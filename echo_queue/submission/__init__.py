"""Submission of prompt sets by Celery: `celery -A echo_queue.submission worker` serves, `submit` sends.

Importing this package imports neither Celery nor any reader of files; `submit_prompt_set` (a Celery task,
for `.delay(…)`) and `app` (what the `celery` program looks for) belong to the run that `ECHO_QUEUE_CONFIG` names.
"""

from typing import TYPE_CHECKING, Any

from echo_queue.errors import EchoQueueError
from echo_queue.submission.progress import Progress, Submitted
from echo_queue.submission.submit import submit

if TYPE_CHECKING:
    from celery import Celery, Task

    app: Celery
    submit_prompt_set: Task

__all__ = ["Progress", "Submitted", "submit", "submit_prompt_set"]


def __getattr__(name: str) -> Any:
    if name not in ("app", "submit_prompt_set"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
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
