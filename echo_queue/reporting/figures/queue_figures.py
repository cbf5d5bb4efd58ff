"""The figures of the queue: where prompts are, whether the identity is kept, and what happened to them."""

from collections.abc import Callable, Mapping
from typing import get_args

from echo_queue.queue import Status
from echo_queue.records.validation import Cause
from echo_queue.reporting.figures.bounds import OTHER
from echo_queue.reporting.figures.figure import Figure, Reading, Subject, Values, one

STATUS, AUDIT = "The queue's status", "The queue's audit"
EVENTS = (
    *("admitted", "leased", "completed", "spilled", "duplicate", "unknown"),
    *("late_completion", "dead_completion", "suspended_completion", "mixed_completion"),
    *("late", "abandoned", "cancelled", "expired", "failed", "released", "missing", "unfit"),
    *(f"bad_{cause}" for cause in ("bytes", "partial", *get_args(Cause))),
    *("buried", "revived", "undone", "asked", "answered", "unanswered", "concluded"),
)
"""The queue's counters, which stand at 0 until they first count."""
FATES = {"continued": "tokens_continued", "discarded": "tokens_discarded"}
DEPARTURES = ("finished", "preempted", "rest", "dismissed", "stopped", "error")
COMPLAINTS = ("bad", "unreachable", "dry")
ELSEWHERE = {
    *("lost", "forged"),
    *FATES.values(),
    *(f"left_{cause}" for cause in DEPARTURES),
    *(f"peer_{complaint}" for complaint in COMPLAINTS),
}
"""Counters that are figures of their own."""


def events(status: Status) -> Mapping[str, int]:
    """Returns the queue's counters that no other figure has, by name; those that no code of ours raises as `OTHER`."""
    found = dict.fromkeys((*EVENTS, OTHER), 0)
    for name, count in status.counts.items():
        if name not in ELSEWHERE:
            found[name if name in found else OTHER] += count
    return found


def _counts(names: Mapping[str, str]) -> Callable[[Reading], Values]:
    """Returns the values of the counters by their labels, 0 for those that have not counted yet."""
    return lambda reading: {(label,): reading.status.counts.get(name, 0) for label, name in names.items()}


def _places(reading: Reading) -> Values:
    status = reading.status
    return {
        ("backlog",): status.backlog,
        ("tasks",): status.tasks,
        ("retry",): status.retry,
        ("ready",): status.ready,
        ("drained",): status.drained,
        ("trained",): status.trained,
        ("dead",): status.dead,
    }


def _kappa(reading: Reading) -> Values:
    update = reading.update
    if update and update.kappa:
        return one(update.kappa)
    kappa = reading.status.rules.kappa
    return one(kappa if isinstance(kappa, int) else None)


UP = Figure(
    "echo_queue_up",
    "gauge",
    "Whether Redis answered the scrape within its deadline, as the monitor's user.",
    "This command",
    "1",
    "See whether Redis runs, and whether this machine reaches it. All other figures are missing while it is 0, and "
    "also before a learner or `prepare` has made the run.",
    lambda _: one(1),
)

RUN = Subject(
    "The run",
    (
        UP,
        Figure(
            "echo_queue_finished",
            "gauge",
            "Whether all prompts are trained or dead and the final model is written.",
            STATUS,
            "0 until the run's end",
            "Nothing: a finished run needs no machine any more.",
            lambda reading: one(reading.status.finished),
        ),
        Figure(
            "echo_queue_learner_silent_seconds",
            "gauge",
            "Time since a learner swept last, by Redis' clock.",
            STATUS,
            "below 5",
            "Read the learner's log and start it again; it resumes from its checkpoint.",
            lambda reading: one(reading.status.learner_silent_ms / 1000 if reading.status.learner_came else None),
        ),
        Figure(
            "echo_queue_learner_lineage",
            "gauge",
            "The number of the learner's starts.",
            STATUS,
            "It rises by one at a restart or a rewind.",
            "A learner that starts again and again says why in its log.",
            lambda reading: one(reading.status.learner.lineage),
        ),
        Figure(
            "echo_queue_learner_version",
            "gauge",
            "The learner's version, counted in updates; a restart or a rewind sets it back to its checkpoint.",
            STATUS,
            "It rises.",
            "See [what is stuck](operations.md#paged-at-night).",
            lambda reading: one(reading.status.learner.number),
        ),
        Figure(
            "echo_queue_published_version",
            "gauge",
            "The newest version that workers may fetch.",
            STATUS,
            "At most κ updates, and the broadcast, behind the learner's version.",
            "Publication fails: read the learner's log, and check the store.",
            lambda reading: one(reading.status.published.version.number if reading.status.published else None),
        ),
        Figure(
            "echo_queue_staleness_bound_updates",
            "gauge",
            "S: no update trains a token that is older than so many updates.",
            "The run rules (`staleness.s`)",
            "as configured",
            "Nothing.",
            lambda reading: one(reading.status.rules.s),
        ),
        Figure(
            "echo_queue_kappa_updates",
            "gauge",
            "κ: the number of updates per publication, also where the learner chooses it.",
            "The newest update, before it the run rules (`staleness.kappa`)",
            "as configured",
            "Nothing.",
            _kappa,
        ),
        Figure(
            "echo_queue_batch_groups",
            "gauge",
            "B: the number of groups in one update.",
            "The run rules (`learner.batch_groups`)",
            "as configured",
            "Nothing.",
            lambda reading: one(reading.status.rules.batch),
        ),
        Figure(
            "echo_queue_window_batches",
            "gauge",
            "w: so many batches may be admitted and not yet trained, by the pace.",
            STATUS,
            "between 1 and S + 1",
            "At its upper end the machines are slower than the learner.",
            lambda reading: one(reading.status.window),
        ),
    ),
)

PROMPTS = Subject(
    "Prompts and groups",
    (
        Figure(
            "echo_queue_submitted_total",
            "counter",
            "Prompts that were submitted, each epoch counted.",
            STATUS,
            "It stands still once all sets have arrived.",
            "A set that does not arrive: see [what died](operations.md#what-died-and-why).",
            lambda reading: one(reading.status.submitted),
        ),
        Figure(
            "echo_queue_groups",
            "gauge",
            "Prompts, or their groups, by the place where they are; the sum of all places is what was submitted.",
            STATUS,
            "`trained` rises, `backlog` falls, and `ready` and `tasks` are above 0.",
            "See [paged at night](operations.md#paged-at-night), which goes by these places.",
            _places,
            ("place",),
        ),
        Figure(
            "echo_queue_in_flight_groups",
            "gauge",
            "Tasks that workers hold under lease: a part of the places `tasks` and `retry`.",
            STATUS,
            "above 0 while there are tasks",
            "No worker generates: see whether workers live.",
            lambda reading: one(reading.status.in_flight),
        ),
        Figure(
            "echo_queue_uncommitted_groups",
            "gauge",
            "Groups that are trained, and that no checkpoint holds yet: a part of the place `drained`.",
            STATUS,
            "below `learner.checkpoint_updates` updates of groups",
            "The store is slow, or away: read the learner's log.",
            lambda reading: one(reading.status.uncommitted),
        ),
        Figure(
            "echo_queue_events_total",
            "counter",
            "What happened to tasks and groups since the run began, by the queue's own counters; those that no code of "
            "ours raises are `other`.",
            "The queue's counters (`stats` and `tallies`)",
            "`expired`, `failed`, `late` and `bad_…` are a small share of `completed`, and `other` is 0.",
            "`expired`: workers vanish; `failed`: read the reasons; `late` or `cancelled`: the data is too slow for S; "
            "`bad_…`: a worker is broken, or its configuration differs; `undone`: somebody went back to a checkpoint.",
            lambda reading: {(name,): count for name, count in events(reading.status).items()},
            ("event",),
        ),
        Figure(
            "echo_queue_partial_tokens_total",
            "counter",
            "Tokens of partial rollouts that another worker was given, and that were thrown away as too old.",
            "The queue's counters (`tallies`)",
            "`discarded` is a small share of `continued`.",
            "Samples that change hands are too slow for S: raise S, or shorten them.",
            _counts(FATES),
            ("fate",),
        ),
        Figure(
            "echo_queue_dead_groups",
            "gauge",
            "Prompts that were given up, by the beginning of the reason; the eight commonest of the newest 1,000 have "
            "their names, and all others are `other`.",
            "The stream `dead`",
            "none",
            "Read the reasons in `echo-queue status`, mend the cause, then `echo-queue revive`.",
            lambda reading: {(cause,): count for cause, count in reading.dead.items()},
            ("cause",),
        ),
    ),
)

IDENTITY = Subject(
    "The identity",
    (
        Figure(
            "echo_queue_identity_ok",
            "gauge",
            "Whether the audit finds nothing wrong: 1 as long as no prompt is missing, doubled or misplaced.",
            AUDIT,
            "1",
            "Stop the learner, keep the directory, and report it with the output of `echo-queue audit`.",
            lambda reading: one(reading.audit.ok),
        ),
        Figure(
            "echo_queue_identity_difference_prompts",
            "gauge",
            "submitted − (backlog + tasks + replay + trained + dead): prompts that are missing, or surplus if below 0.",
            AUDIT,
            "0",
            "As for `echo_queue_identity_ok`.",
            lambda reading: one(reading.audit.difference),
        ),
        Figure(
            "echo_queue_misplaced_entries",
            "gauge",
            "Ids that have a place, minus the entries of all streams.",
            AUDIT,
            "0",
            "As for `echo_queue_identity_ok`.",
            lambda reading: one(reading.audit.misplaced),
        ),
        Figure(
            "echo_queue_lost_entries_total",
            "counter",
            "Entries that vanished from a work stream although no move removed them.",
            AUDIT,
            "0",
            "Somebody deletes or trims keys of the run: change the passwords.",
            lambda reading: one(reading.audit.lost),
        ),
        Figure(
            "echo_queue_forged_words_total",
            "counter",
            "Times that a move found, and mended, words that no code of this project writes.",
            AUDIT,
            "0",
            "Somebody uses a worker's Redis user by hand: change its password, or revoke its invitation.",
            lambda reading: one(reading.audit.forged),
        ),
    ),
)

DEPARTED = _counts({cause: f"left_{cause}" for cause in DEPARTURES})
COMPLAINED = _counts({complaint: f"peer_{complaint}" for complaint in COMPLAINTS})
