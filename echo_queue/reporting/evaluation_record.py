"""The lines about evaluations, on whatever machine they are asked for.

- The learner keeps each line in Redis, where everyone who may look reads the same: the newest of them.
- `evaluations.jsonl` on the learner's machine has all of them, and answers there once Redis does not.
"""

from collections.abc import Sequence
from pathlib import Path

from echo_queue import failpoints
from echo_queue.evaluation.results import EvaluationResult, curves, result_of
from echo_queue.queue import Evaluations

FILE = "evaluations.jsonl"
COUNT = 10_000
"""So many lines are read of Redis, which keeps about as many."""
RETOLD = 1_000
"""So many lines of the file, the newest ones, are looked for in Redis."""


class EvaluationRecord:
    """The record of the run in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def read(self, told: Evaluations | None = None) -> tuple[EvaluationResult, ...]:
        """Returns all results, those of abandoned versions as well (`curves`): of the file, and those that Redis has.

        `told` is None where Redis does not answer. Lines of another release are left out. Raises `EchoQueueError`.
        """
        lines = dict.fromkeys([*self._lines(), *(told.lines(COUNT) if told else ())])
        return tuple(result for line in lines if (result := result_of(line)))

    def add(self, lines: Sequence[bytes]) -> None:
        """Appends lines to the file, but those that are there."""
        known = self._lines()
        if new := [line for line in dict.fromkeys(lines) if line not in known]:
            failpoints.step("write evaluations", lambda: self._append(new), new)

    def untold(self, told: Evaluations) -> list[bytes]:
        """Returns the newest lines of the file that Redis lacks, as one does that was lost."""
        there = set(told.lines(COUNT))
        return [line for line in self._lines()[-RETOLD:] if line not in there]

    def _lines(self) -> list[bytes]:
        """Returns the whole lines of the file."""
        return self._path.read_bytes().rpartition(b"\n")[0].splitlines() if self._path.exists() else []

    def _append(self, lines: Sequence[bytes]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # Behind a line that a crash has torn, which is read as none.
            torn = file.tell() > 0 and self._path.read_bytes()[-1:] != b"\n"
            file.write(b"".join([b"\n" * torn, *(line + b"\n" for line in lines)]))


def newest(results: Sequence[EvaluationResult]) -> tuple[EvaluationResult, ...]:
    """Returns the newest answered result of each evaluation in the surviving history, by name."""
    answered = ([one for one in curve if not one.given_up] for _, curve in sorted(curves(results).items()))
    return tuple(curve[-1] for curve in answered if curve)
