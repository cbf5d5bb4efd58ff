"""Reports of the ranks on their parts in saving or loading a checkpoint. A failure is such a report, never a silence.

Reports are JSON documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from echo_queue import documents
from echo_queue.errors import EchoQueueError, Problem
from learner.ranks.team import OtherRankError, Team
from learner.recovery.state_files import StateFile


@dataclass(frozen=True)
class RankReport:
    """`files`: what the rank stored. `damage`: why it cannot use the checkpoint. `failure`: why it ends."""

    files: tuple[StateFile, ...] = ()
    damage: str | None = None
    failure: Problem | None = None

    def encode(self) -> bytes:
        return documents.encode(self)


def decode(data: bytes) -> RankReport:
    """Decodes what `RankReport.encode` wrote. Raises `ValueError` for anything else."""
    return documents.decode(RankReport, data, "a rank's report")


def damaged(error: Exception) -> RankReport:
    """Returns the report of a rank that cannot use a checkpoint because of `error`."""
    return RankReport(damage=_encodable(str(error)))


def failed(error: Exception) -> RankReport:
    """Returns the report of a rank that ends by `error`."""
    if isinstance(error, EchoQueueError) and error.problems:
        found = error.problems[0]
    else:
        found = Problem("", f"{type(error).__name__}: {error}", "see the traceback in that rank's log")
    where, what, fix = (_encodable(text) for text in (found.where, found.what, found.fix))
    return RankReport(failure=Problem(where, what, fix))


def gather(team: Team, name: str, deadline_s: float) -> tuple[RankReport, ...]:
    """Rank 0: returns the reports of all ranks, in order. Raises `RankLostError`, which names the ranks without."""
    return tuple(map(decode, team.reports(name, deadline_s)))


def exchange(team: Team, name: str, own: RankReport, deadline_s: float) -> tuple[RankReport, ...]:
    """Returns, on every rank, the reports of all ranks. Rank 0 waits for them until the deadline, as `gather` does."""
    team.report(name, own.encode())
    together = team.share(lambda: b"\n".join(report.encode() for report in gather(team, name, deadline_s)))
    return tuple(map(decode, together.split(b"\n")))


def raise_failures(team: Team, reports: Sequence[RankReport], part: str) -> None:
    """Raises an error that names each rank whose `part`, such as "save its part", failed, and the cause.

    It is an `OtherRankError` on all ranks but rank 0.
    """
    problems = [
        Problem(f"learner rank {rank}", f"could not {part}: {_cause(report.failure)}", report.failure.fix)
        for rank, report in enumerate(reports)
        if report.failure is not None
    ]
    if problems:
        raise (EchoQueueError if team.first else OtherRankError)(*problems)


def _cause(failure: Problem) -> str:
    return f"{failure.where}: {failure.what}" if failure.where else failure.what


def _encodable(text: str) -> str:
    """Returns the text without what UTF-8 cannot spell, which an exception may quote."""
    return text.encode("utf-8", "replace").decode()
