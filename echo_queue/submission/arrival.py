"""Waits until every chunk of a set is in the backlog or refused, and reports the refused ones."""

import random
import time
from collections.abc import Iterator
from contextlib import suppress

from celery import Celery

from echo_queue.config import Config
from echo_queue.errors import DeadlineError, Problem, PromptError, ServiceError
from echo_queue.queue import SubmissionCounts, SubmitterQueue
from echo_queue.queue.counts import agreeing, counted
from echo_queue.submission.celery.messages import messages_waiting
from echo_queue.submission.celery.reconciler import Reconciler
from echo_queue.submission.expand import problems_of
from echo_queue.submission.progress import Progress, Report
from echo_queue.submission.sources.rows import REPORTED

POLL_S = 0.2
QUIET_S = 3.0
"""When nothing has arrived for so long, it is reported once what the submission waits for."""


def arrive(config: Config, queue: SubmitterQueue, app: Celery, name: str, report: Report) -> None:
    """Returns when all of the set has arrived.

    Raises `PromptError` with the problems of refused chunks, once no other chunk is missing; `DeadlineError` when
    nothing has arrived for `submission.deadline_s`.
    """
    reconciler = Reconciler(config, queue, app)
    before: SubmissionCounts | None = None
    moved = reconciled = time.monotonic()
    told = False
    while True:
        arrival = queue.submission_counts(name)
        now = time.monotonic()
        if arrival is None:
            raise PromptError(Problem(f"set {name}", "is gone from Redis", "submit it again"))
        if arrival != before:
            before, moved, told = arrival, now, False
            report(Progress(name, arrival.prompts, arrival.count, arrival.failed))
        if arrival.settled:
            break
        if now - moved > config.submission.deadline_s:
            fix = "start `celery -A echo_queue.submission worker`, or read its log; chunks that have arrived stay"
            raise DeadlineError(Problem(f"set {name}", _missing(app, arrival, config.submission.deadline_s), fix))
        if now - moved > QUIET_S and not told:
            with suppress(ServiceError):
                waits = _missing(app, arrival, now - moved)
                report(Progress(name, arrival.prompts, arrival.count, arrival.failed, waits))
                told = True
        if now - reconciled > config.submission.reconcile_s:
            # The broker may be away for now; if Redis itself is, the next `submission_counts` ends this wait.
            with suppress(ServiceError):
                reconciler.reconcile()
            reconciled = now
        time.sleep(POLL_S * random.uniform(0.5, 1.0))
    if arrival.failed:
        raise PromptError(*_refused(queue, name))


def _missing(app: Celery, arrival: SubmissionCounts, still_s: float) -> str:
    """Returns which chunks are missing, none of which has arrived in the last `still_s` seconds."""
    missing = arrival.chunks - arrival.arrived - arrival.failed
    have, waiting = agreeing(missing, "has", "have"), counted(messages_waiting(app), "message", "waits", "wait")
    chunks = f"{missing} of {counted(arrival.chunks, 'chunk')} {have} not arrived, none in the last {still_s:.0f} s"
    return f"{chunks}; {waiting} for a Celery worker"


def _refused(queue: SubmitterQueue, name: str) -> Iterator[Problem]:
    submission_status = queue.submission_status(name)
    failed = submission_status.failed if submission_status else ()
    problems = dict.fromkeys(problem for chunk in failed for problem in problems_of(chunk.reason))
    yield from list(problems)[:REPORTED]
    if len(problems) > REPORTED:
        what = f"{counted(len(problems) - REPORTED, 'further problem')} in {counted(len(failed), 'chunk')}"
        yield Problem(f"set {name}", what, "fix these first; another `submit` sends only the missing chunks")
