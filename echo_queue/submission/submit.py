"""`submit`: a prompt set from its source into the backlog, whoever expands its chunks."""

from echo_queue.config import Config
from echo_queue.queue import SubmitterQueue
from echo_queue.submission.progress import Report, Submitted


def submit(
    config: Config, source: str | None = None, *, wait: bool = True, progress: Report | None = None
) -> Submitted:
    """Submits the configured prompt set, or `source` under its name; `wait`: until all of it is in the backlog.

    Raises `PromptError` for prompts that cannot be read or are too long, `ServiceError`, and
    `DeadlineError` when nothing arrives for `submission.deadline_s`.
    """
    from echo_queue.submission.arrival import arrive
    from echo_queue.submission.celery.app import build
    from echo_queue.submission.declaration import choose, place

    app, queue = build(config), SubmitterQueue.connect(config)
    report = progress or (lambda _: None)
    sent = place(config, queue, app, choose(config, source), report)
    if wait:
        arrive(config, queue, app, sent.set, report)
    return sent
