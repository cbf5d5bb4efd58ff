"""What a run says about its updates, on whatever machine it is asked.

- The learner records each update in Redis, where everyone who may look reads the same: the newest 10,000 of them.
- `metrics.jsonl` on the learner's machine has all of them, and answers there once Redis does not.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from echo_queue import __version__
from echo_queue.queue import Monitor, Status, UpdateRecord
from echo_queue.queue.counts import counted
from echo_queue.records import BASE, Version
from echo_queue.reporting import metrics
from echo_queue.reporting.metrics import MetricsReader, SurvivingUpdates, UpdateMetrics

SKEWS = 4
"""The largest number of roles of another release that are named."""


def record_of(update: UpdateMetrics, release: str = __version__) -> UpdateRecord:
    """Returns what Redis keeps of an update."""
    line = metrics.line_of(replace(update, trained_ids=()))
    return UpdateRecord(Version(update.lineage, update.version), release, (*update.trained_ids, "")[0], line)


def unrecorded(path: Path, newest: Version) -> Sequence[UpdateRecord]:
    """Returns the records of the updates in the file at `path` that came after `newest`.

    A Redis that was set back, or lost, lacks them. Their learner's release is not known any more.
    """
    return [record_of(one, "") for one in metrics.read(path) if Version(one.lineage, one.version) > newest]


class RunRecord:
    """Reads the updates of a run: each `read` asks only for those that were recorded since the one before."""

    def __init__(self, path: Path) -> None:
        self.unreadable = 0
        """The number of updates whose record this release does not understand."""
        self.learner_release = ""
        """The release of the learner that made the newest update; empty if it is not known."""
        self._file = MetricsReader(path)
        self._recorded = SurvivingUpdates()
        self._newest = BASE

    def read(self, queue: Monitor | None) -> Sequence[UpdateMetrics]:
        """Returns the updates of the surviving history, by version: as Redis has them, else as this machine's file has.

        `queue` is None where Redis does not answer. The answer is the same object as the one before if nothing was
        added since. Raises `EchoQueueError`.
        """
        records = queue.updates(self._newest) if queue else []
        if records:
            self._newest, self.learner_release = records[-1].version, records[-1].release
        found = [update for record in records if (update := metrics.update_of(record.line))]
        self.unreadable += len(records) - len(found)
        return self._recorded.with_these(found) if self._newest > BASE else self._file.read()


def skew(status: Status | None, record: RunRecord, own: str = __version__) -> str:
    """Returns which roles run another release than this command; an empty text if none is known to."""
    releases = {"the learner": record.learner_release}
    for worker in status.workers if status else ():
        releases[worker.name] = worker.heartbeat.release if worker.heartbeat else ""
    found = [f"{role} runs release {release}" for role, release in releases.items() if release not in ("", own)]
    if record.unreadable:
        verb = "is" if record.unreadable == 1 else "are"
        found.insert(0, f"{counted(record.unreadable, 'update')} {verb} recorded in a form that is unknown here")
    return f"{', '.join(found[:SKEWS])}; this command is release {own}" if found else ""
