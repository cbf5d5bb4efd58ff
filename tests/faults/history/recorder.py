"""A record of what every role does, seen from outside: the raw material of `checker`.

- A `Recorder` observes the role's failpoints (`echo_queue.failpoints`). The subject of an operation is written and
  synced to disk before it is sent, its answer before the role goes on: an attempt without an answer may or may not have
  happened.
- One file per life of a process, one JSON line per event; only a file's last line may be torn.
"""

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from tests.faults.history.facts import ANSWERS, ATTEMPTS, Begun, Facts, Generated, Part


@dataclass(frozen=True)
class Event:
    """One line. An attempt and its answer have the same `number` within a `life`."""

    life: str
    line: int
    number: int
    time_s: float
    step: str
    answered: bool
    facts: Facts

    @property
    def role(self) -> str:
        return self.life.partition(".")[0]

    @property
    def place(self) -> str:
        return f"{self.life}.jsonl:{self.line}"


class Recorder:
    """The observer of one role. A process that it forks goes on in a file of its own."""

    def __init__(self, directory: Path, role: str) -> None:
        self._directory, self._role = directory, role
        self._lock = threading.Lock()
        self._thread = threading.local()
        self._pid = self._file = self._number = 0

    def before(self, step: str, about: object) -> None:
        tell = ATTEMPTS.get(step)
        if tell is not None:
            self._thread.number = self._write(step, tell(about), None)

    def after(self, step: str, about: object, answer: object) -> None:
        tell = ANSWERS.get(step)
        if tell is not None:
            self._write(step, tell(about, answer), self._thread.number)

    def _write(self, step: str, facts: Facts, number: int | None) -> int:
        with self._lock:
            if self._pid != os.getpid():
                self._open()
            if number is None:
                number = self._number = self._number + 1
                answered = False
            else:
                answered = True
            line = {"n": number, "t": time.time(), "step": step, "answered": answered} | _filled(facts)
            os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            os.fdatasync(self._file)
            return number

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._pid, self._number = os.getpid(), 0
        path = self._directory / f"{self._role}.{time.time_ns():x}.{self._pid}.jsonl"
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)


def read(directory: Path) -> tuple[Event, ...]:
    """All events of all lives, in order of time."""
    events = [event for path in sorted(directory.glob("*.jsonl")) for event in _lines(path)]
    return tuple(sorted(events, key=lambda event: event.time_s))


def _lines(path: Path) -> Iterable[Event]:
    lines = path.read_bytes().split(b"\n")
    for place, text in enumerate(lines[:-1], start=1):  # what follows the last line end is torn, or nothing
        words = orjson.loads(text)
        yield Event(path.stem, place, words["n"], words["t"], words["step"], words["answered"], _facts(words))


def _filled(facts: Facts) -> dict[str, Any]:
    known = {field.name: getattr(facts, field.name) for field in fields(Facts)}
    words = {name: value for name, value in known.items() if value is not None and value not in ((), "")}
    return words | {name: list(map(tuple, words[name])) for name in ("groups", "partials", "parts") if name in words}


def _facts(words: dict[str, Any]) -> Facts:
    known = {field.name: words[field.name] for field in fields(Facts) if field.name in words}
    for name in ("ids", "outcomes"):
        known[name] = tuple(known.get(name, ()))
    known["groups"] = tuple(Generated(*group) for group in known.get("groups", ()))
    known["partials"] = tuple(Begun(*partial_sample) for partial_sample in known.get("partials", ()))
    known["parts"] = tuple(Part(*part) for part in known.get("parts", ()))
    return Facts(**known)
