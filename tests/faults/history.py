"""What every role says it did, seen from outside: the raw material of `checker`.

- A `Recorder` stands at the role's doors (`echo_queue.doors`). What an operation is about is written and synced to
  disk before it is sent, its answer before the role goes on: an attempt without an answer may or may not have happened.
- One file per life of a process, one JSON line per event; only a file's last line may be torn.
- Groups are told apart by a print of their content, so that what was trained can be traced to who made it.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from blake3 import blake3

from echo_queue.codec import CodecError, decode
from echo_queue.records import Group
from tests.faults import stamps


class Made(NamedTuple):
    """A group as its content tells: `mark` is the print of that content, `oldest` counts over its tokens' spans."""

    id: str
    mark: str
    worker: str
    attempt: int
    oldest: int
    newest: int
    lineage: int
    stamp: str = ""
    """The versions that the tensors themselves told (`stamps`), oldest first."""
    highest: int = 0
    """Its largest token: beyond the vocabulary in a group that was spoiled."""
    observed: int = 0
    """How often its environment answered."""

    @classmethod
    def of(cls, group: Group) -> "Made":
        print_ = blake3(f"{group.task} {group.worker} {group.attempt} {group.lineage}".encode())
        for sample in group.samples:
            print_.update(sample.tokens.tobytes() + sample.logprobs.tobytes() + repr(sample.spans).encode())
        versions = [span.version for sample in group.samples for span in sample.spans]
        made_by = (group.worker, group.attempt)
        highest = max((int(token) for sample in group.samples for token in sample.tokens), default=0)
        made = (group.task, print_.hexdigest(8), *made_by, min(versions), max(versions), group.lineage)
        return cls(*made, stamps.read(group.samples), highest, sum(len(sample.observed) for sample in group.samples))


class Part(NamedTuple):
    """Prompts first … first + size − 1 of a set: one chunk of it."""

    number: int
    first: int
    size: int


@dataclass(frozen=True)
class Facts:
    """What an operation is about, or what was answered; each step fills in what it has."""

    ids: tuple[str, ...] = ()
    groups: tuple[Made, ...] = ()
    outcomes: tuple[str, ...] = ()
    """Of a completion, group by group."""
    set: str = ""
    epochs: int = 0
    parts: tuple[Part, ...] = ()
    lineage: int | None = None
    version: int | None = None
    parent: int | None = None
    """The lineage of the checkpoint at which a learner resumes."""
    key: str = ""
    note: str = ""


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
    return words | {name: list(map(tuple, words[name])) for name in ("groups", "parts") if name in words}


def _facts(words: dict[str, Any]) -> Facts:
    known = {field.name: words[field.name] for field in fields(Facts) if field.name in words}
    for name in ("ids", "outcomes"):
        known[name] = tuple(known.get(name, ()))
    known["groups"] = tuple(Made(*group) for group in known.get("groups", ()))
    known["parts"] = tuple(Part(*part) for part in known.get("parts", ()))
    return Facts(**known)


# What each step is about ----------------------------------------------------------------------------------------------


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def is_id(word: Any) -> bool:
    """Whether a word of a move is a task's id: set/epoch/index."""
    parts = _text(word).rsplit("/", 2)
    return len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()


def _named(args: Sequence[Any]) -> Facts:
    """Moves whose words hold ids."""
    return Facts(ids=tuple(word for word in map(_text, args) if is_id(word)))


def _learners(args: Sequence[Any]) -> Facts:
    """Moves of a learner: the first word is its lineage."""
    return Facts(lineage=int(args[0]), ids=_named(args).ids)


def _declare(args: Sequence[Any]) -> Facts:
    name, source, epochs, _, _, _, _, *ranges = args
    parts = tuple(Part(at // 4, int(ranges[at]), int(ranges[at + 1])) for at in range(0, len(ranges), 4))
    return Facts(set=name, epochs=int(epochs), parts=parts, note=source)


def _submit(args: Sequence[Any]) -> Facts:
    name, chunk, first, count, stored, _ = args
    return Facts(set=name, parts=(Part(int(chunk), int(first), int(count)),), key=stored)


def _reject(args: Sequence[Any]) -> Facts:
    return Facts(set=args[0], parts=(Part(int(args[1]), 0, 0),), note=str(args[3])[:200])


def _lease(args: Sequence[Any]) -> Facts:
    return Facts(lineage=int(args[1]), version=int(args[2]))


def _complete(about: tuple[str, Sequence[Group]]) -> Facts:
    return Facts(groups=tuple(map(Made.of, about[1])))


def _fail(args: Sequence[Any]) -> Facts:
    return Facts(ids=(_text(args[1]),), note=_text(args[2])[-200:])


def _bury(args: Sequence[Any]) -> Facts:
    return Facts(ids=(_text(args[0]),), note=_text(args[1])[:200])


def _condemn(args: Sequence[Any]) -> Facts:
    return Facts(lineage=int(args[0]), ids=(_text(args[1]),), note=_text(args[3])[:200])


def _resume(args: Sequence[Any]) -> Facts:
    return Facts(parent=int(args[0]), version=int(args[1]))


def _publish(args: Sequence[Any]) -> Facts:
    return Facts(lineage=int(args[0]), version=int(args[1]))


def _key(about: Any) -> Facts:
    return Facts(key=str(about))


def _places(about: Sequence[tuple[Any, Any]]) -> Facts:
    return Facts(ids=tuple(_text(task) for task, _ in about))


ATTEMPTS: dict[str, Callable[[Any], Facts]] = {
    "declare": _declare,
    "submit": _submit,
    "reject": _reject,
    "lease": _lease,
    "release": _named,
    "fail": _fail,
    "complete": _complete,
    "resume": _resume,
    "pending": _learners,
    "drain": _learners,
    "fetch": _places,
    "get replay": _key,
    "advance": _learners,
    "commit": _learners,
    "uncommit": _learners,
    "publish": _publish,
    "bury": _bury,
    "condemn": _condemn,
    "revive": _named,
    "finish": lambda _: Facts(),
    "put checkpoints/manifest.json": _key,
    "put once checkpoints/manifest.json": _key,
}


# What was answered ----------------------------------------------------------------------------------------------------

# A move's answer is a list, one reply for each call that went with it; only a completion has several.


def _said(about: Any, answer: Any) -> Facts:
    return Facts(note=str(answer[0]) if isinstance(answer[0], int) else "")


def _leased(about: Any, answer: Any) -> Facts:
    found = []
    for _, _, words, *_ in answer[0][5]:
        found.append(_text(words[[_text(word) for word in words[::2]].index("id") * 2 + 1]))
    return Facts(ids=tuple(found))


def _completed(about: Any, answer: Any) -> Facts:
    return Facts(outcomes=tuple(map(_text, answer)))


def _resumed(about: Any, answer: Any) -> Facts:
    return replace(_resume(about), lineage=int(answer[0][0]))


def _rows(about: Any, answer: Any) -> Facts:
    return Facts(ids=tuple(_text(row[0]) for row in answer[0][0]))


def _fetched(about: Any, answer: Any) -> Facts:
    """Groups that lie in the store are seen when they are read there."""
    held = (rows[0][1].get(b"group") for rows in answer if rows)
    return Facts(groups=tuple(made for data in held if data and (made := _made(data))))


def _read_back(about: Any, answer: Any) -> Facts:
    made = _made(answer)
    return Facts(groups=(made,) if made else ())


def _made(data: bytes) -> Made | None:
    try:
        return Made.of(decode(data))
    except CodecError:
        return None  # the learner will say so itself


def _put(about: Any, answer: Any) -> Facts:
    return _key(about)


ANSWERS: dict[str, Callable[[Any, Any], Facts]] = dict.fromkeys(ATTEMPTS, _said) | {
    "lease": _leased,
    "complete": _completed,
    "resume": _resumed,
    "pending": _rows,
    "drain": _rows,
    "fetch": _fetched,
    "get replay": _read_back,
    "put checkpoints/manifest.json": _put,
    "put once checkpoints/manifest.json": _put,
}
