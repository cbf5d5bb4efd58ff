"""`outcome.json`: what the queue said when `echo-queue run` ended, whatever ended it.

It answers those who ask once the embedded services are gone, and tells the next `run` whether anything is left to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from echo_queue import documents, failpoints
from echo_queue.atomic_file import write_atomically
from echo_queue.config import Config
from echo_queue.queue import Audit, Status
from echo_queue.queue.dead_causes import DeadCause


@dataclass(frozen=True)
class Outcome:
    """The queue's last answers. `ended`: when they were given, in UTC; `dead`: why prompts died; `early`: the run was
    stopped, or ended with an error; `sets`: the digest of each set's prompts."""

    ended: datetime
    updates: int
    audit: Audit
    status: Status
    dead: tuple[DeadCause, ...] = ()
    early: bool = False
    sets: Mapping[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Returns whether nothing is left to do. Otherwise the same command continues, and tries the dead again."""
        return self.audit.ok and not self.audit.dead and not self.early


DOCUMENTS = TypeAdapter(Outcome)


def write(
    config: Config,
    updates: int,
    audit: Audit,
    status: Status,
    *,
    dead: Sequence[DeadCause],
    sets: Mapping[str, str],
    early: bool = False,
) -> None:
    """Keeps the last answers of a run that ends after `updates` updates."""
    outcome = Outcome(datetime.now(UTC), updates, audit, status, tuple(dead), early, sets)
    write_atomically(path(config), documents.encode(outcome), "outcome")


def read(config: Config) -> Outcome | None:
    """Returns the last answers; None if the run has not ended, or by another release."""
    try:
        return DOCUMENTS.validate_json(path(config).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def forget(config: Config) -> None:
    """Removes them, before the run goes on: a command killed in between must not leave a run marked as over."""
    failpoints.step("remove outcome", lambda: path(config).unlink(missing_ok=True))


def path(config: Config) -> Path:
    return config.run.dir / "outcome.json"
