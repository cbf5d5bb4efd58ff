"""The file of `echo-queue eval`: a line that says what was asked of which model, then one line for each prompt.

- A line lasts once `AnswersFile.add` has returned. Half of a last line, which a killed command leaves, is cut off.
- A file is continued only by who asks the same of the same model, and by one process at a time.
"""

import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from echo_queue import documents
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.evaluation.results import Answer, PromptAnswers
from echo_queue.records import Finish

ANOTHER_FILE = "name another file with --out, or remove this one"


@dataclass(frozen=True)
class AskedSet:
    """A set of prompts, and how it is answered. `digest`: that of all its prompts; `environment`: of its settings.

    `prompts`: how many of them are asked, from the first one on. `success`: the least reward of an answer that
    succeeds.
    """

    name: str
    digest: str
    prompts: int
    samples: int
    temperature: float
    top_p: float
    max_new_tokens: int
    environment: str
    success: float


@dataclass(frozen=True)
class Asked:
    """The question of a file: these sets, asked of this model.

    `digest`: of the model's weights; `seed`: from which all seeds are derived.
    """

    model: str
    digest: str
    seed: int
    sets: tuple[AskedSet, ...]

    @property
    def prompts(self) -> int:
        return sum(one.prompts for one in self.sets)


@dataclass(frozen=True)
class AnswerLine:
    """One answer with its text. `length`: in tokens, those of the environment's observations among them."""

    reward: float
    length: int
    finish: Finish
    text: str


@dataclass(frozen=True)
class PromptLine:
    """The answers to prompt `index` of a set. A prompt that failed in all attempts has none, and the last `reason`."""

    set: str
    index: int
    answers: tuple[AnswerLine, ...] = ()
    reason: str = ""

    @property
    def answered(self) -> PromptAnswers:
        answers = (Answer(one.reward, one.length, one.finish) for one in self.answers)
        return PromptAnswers(self.index, tuple(answers), self.reason)


ASKED, PROMPT_LINE = TypeAdapter(Asked), TypeAdapter(PromptLine)


class AnswersFile:
    """The file while it is written. Any thread may add to it."""

    def __init__(self, path: Path, asked: Asked) -> None:
        """Begins the file, or goes on with it. Raises `EchoQueueError` for a file of other answers, or in use."""
        self.path, self.asked = path, asked
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.lines = self._continued()
        except BlockingIOError:
            self._file.close()
            raise EchoQueueError(Problem(str(path), "another process writes it", "wait for it, or end it")) from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, lines: Sequence[PromptLine]) -> None:
        """Adds lines; they last once this returns. Raises `EchoQueueError` if they cannot be written."""
        with self._lock:
            self._write(b"".join(documents.encode(line) + b"\n" for line in lines))
            self.lines += lines

    def _continued(self) -> list[PromptLine]:
        """Returns the lines that are there, once the file begins as it must and ends with a whole line."""
        self._file.seek(0)
        data, first = self._file.read(), documents.encode(self.asked) + b"\n"
        if first.startswith(data):
            self._file.truncate(0)
            self._write(first)
            return []
        asked, lines = _parsed(self.path, data)
        if asked != self.asked:
            what = f"has other answers: {_differing(asked, self.asked)}"
            raise EchoQueueError(Problem(str(self.path), what, ANOTHER_FILE))
        self._file.truncate(data.rindex(b"\n") + 1)
        return lines

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> EchoQueueError:
        what = f"cannot be written: {error.strerror or error}"
        return EchoQueueError(Problem(str(self.path), what, "make room or name another file with --out"))


def read(path: Path) -> tuple[Asked, list[PromptLine]]:
    """Returns what a file has; half of a last line is left out. Raises `EchoQueueError`."""
    try:
        return _parsed(path, path.read_bytes())
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise EchoQueueError(Problem(str(path), what, "name a file that `echo-queue eval` has written")) from None


def _parsed(path: Path, data: bytes) -> tuple[Asked, list[PromptLine]]:
    first, *rest = data.split(b"\n")[:-1] or [data]
    try:
        return ASKED.validate_json(first), [PROMPT_LINE.validate_json(line) for line in rest]
    except ValidationError:
        what = "is no file of answers of this release"
        raise EchoQueueError(Problem(str(path), what, ANOTHER_FILE)) from None


def _differing(old: Asked, new: Asked) -> str:
    """Returns the first thing in which two differ, in words."""
    pairs = zip(_named(old), _named(new), strict=False)
    return next(f"{where} is {before} there and {now} here" for (where, before), (_, now) in pairs if before != now)


def _named(asked: Asked) -> Iterator[tuple[str, object]]:
    yield "its model", asked.model
    yield "its model's digest", asked.digest
    yield "the seed", asked.seed
    yield "its evaluations", ", ".join(one.name for one in asked.sets)
    for one in asked.sets:
        yield from ((f"{one.name}'s {key.replace('_', ' ')}", value) for key, value in asdict(one).items())
