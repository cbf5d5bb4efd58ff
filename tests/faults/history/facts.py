"""The facts of an operation, its subject and its answer, as `history` writes them: one function for each step.

Groups and partial rollouts are told apart by a print of their content, so that both can be traced to who made them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from blake3 import blake3

from echo_queue.queue import replies
from echo_queue.queue.sent_progress import Sent
from echo_queue.queue.types import StoredPartial
from echo_queue.records import Group, PartialGroup, Tokens, partial_codec
from echo_queue.records.group_codec import CodecError, decode
from tests.faults.history import stamps

KEEPS = "keeps"
"""The note of a lease whose worker keeps its version until the round under way is answered."""


class Generated(NamedTuple):
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
    """The number of answers of its environment."""
    said: str = ""
    """The print of what is kept of an answer to an evaluation (`said_by`)."""

    @classmethod
    def of(cls, group: Group) -> "Generated":
        print_ = blake3(f"{group.task} {group.worker} {group.attempt} {group.lineage}".encode())
        for sample in group.samples:
            print_.update(sample.tokens.tobytes() + sample.logprobs.tobytes() + repr(sample.spans).encode())
        versions = [span.version for sample in group.samples for span in sample.spans]
        made_by = (group.worker, group.attempt)
        highest = max((int(token) for sample in group.samples for token in sample.tokens), default=0)
        made = (group.task, print_.hexdigest(8), *made_by, min(versions), max(versions), group.lineage)
        observed = sum(len(sample.observed) for sample in group.samples)
        said = said_by((sample.tokens, sample.reward, sample.finish) for sample in group.samples)
        return cls(*made, stamps.read(group.samples), highest, observed, said)


def said_by(answers: Iterable[tuple[Tokens, float, str | None]]) -> str:
    """Returns the print of the tokens, the reward and the end of each answer to a prompt."""
    print_ = blake3()
    for tokens, reward, finish in answers:
        print_.update(tokens.tobytes() + f" {float(reward)} {finish} ".encode())
    return print_.hexdigest(8)


class Begun(NamedTuple):
    """The progress of a task, as its partial rollout shows it: `mark` is the one by which the queue knows it."""

    id: str
    mark: str
    tokens: int
    oldest: int = 0
    newest: int = 0
    lineage: int = 0
    highest: int = 0
    """Its largest token, as far as known: a lease tells only where the partial rollout lies."""

    @classmethod
    def of(cls, partials: PartialGroup, mark: str) -> "Begun":
        highest = max((int(one.tokens.max(initial=0)) for one in partials.samples), default=0)
        tokens = partial_codec.tokens(partials)
        made_by = (*(partial_codec.versions(partials) if tokens else (0, 0)), partials.lineage)
        return cls(partials.task, mark, tokens, *made_by, highest)

    @classmethod
    def told(cls, task: str, kept: StoredPartial) -> "Begun":
        """Returns the partial rollout that a lease hands out."""
        return cls(task, kept.mark, kept.tokens, kept.oldest, kept.newest, kept.lineage)


class Part(NamedTuple):
    """Prompts first … first + size − 1 of a set: one chunk of it."""

    number: int
    first: int
    size: int


@dataclass(frozen=True)
class Facts:
    """The subject of an operation, or its answer; each step fills in what it has."""

    ids: tuple[str, ...] = ()
    groups: tuple[Generated, ...] = ()
    partials: tuple[Begun, ...] = ()
    outcomes: tuple[str, ...] = ()
    """The outcomes of a completion, group by group."""
    set: str = ""
    epochs: int = 0
    order: str = ""
    """How the prompts of a set are admitted; `held_out`: only rounds of evaluation ask them."""
    parts: tuple[Part, ...] = ()
    lineage: int | None = None
    version: int | None = None
    parent: int | None = None
    """The lineage of the checkpoint at which a learner resumes."""
    key: str = ""
    round: int | None = None
    note: str = ""


# What each step is about ----------------------------------------------------------------------------------------------


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def is_id(word: Any) -> bool:
    """Returns whether a word of a move is a task's id: set/epoch/index."""
    parts = _text(word).rsplit("/", 2)
    return len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal()


def _named(args: Sequence[Any]) -> Facts:
    """Moves whose words hold ids."""
    return Facts(ids=tuple(word for word in map(_text, args) if is_id(word)))


def _learners(args: Sequence[Any]) -> Facts:
    """Moves of a learner: the first word is its lineage."""
    return Facts(lineage=int(args[0]), ids=_named(args).ids)


def _declare(args: Sequence[Any]) -> Facts:
    name, source, epochs, _, order, _, _, _, *ranges = args
    parts = tuple(Part(at // 4, int(ranges[at]), int(ranges[at + 1])) for at in range(0, len(ranges), 4))
    return Facts(set=name, epochs=int(epochs), order=order, parts=parts, note=source)


def _submit(args: Sequence[Any]) -> Facts:
    name, chunk, first, count, stored, _ = args
    return Facts(set=name, parts=(Part(int(chunk), int(first), int(count)),), key=stored)


def _reject(args: Sequence[Any]) -> Facts:
    return Facts(set=args[0], parts=(Part(int(args[1]), 0, 0),), note=str(args[3])[:200])


def _lease(args: Sequence[Any]) -> Facts:
    return Facts(lineage=int(args[1]), version=int(args[2]))


def _complete(about: tuple[str, Sequence[Group]]) -> Facts:
    return Facts(groups=tuple(map(Generated.of, about[1])))


def _progress(about: tuple[str, Sequence[Sent]]) -> Facts:
    return Facts(partials=tuple(Begun.of(sent.partials, sent.mark) for sent in about[1]))


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


def _evaluate(args: Sequence[Any]) -> Facts:
    """The version that is asked, and of which sets."""
    _, lineage, number, *sets = args
    return Facts(lineage=int(lineage), version=int(number), note=" ".join(map(_text, sets)))


def _conclude(args: Sequence[Any]) -> Facts:
    """A round, and the lines of what was found out."""
    lineage, number, *lines = args
    return Facts(lineage=int(lineage), round=int(number), note="\n".join(map(_text, lines)))


def _plan(args: Sequence[Any]) -> Facts:
    """A leader's plan, with its term."""
    return Facts(version=int(args[1]))


def _order(args: Sequence[Any]) -> Facts:
    """An order, with the names of the workers that it is for."""
    return Facts(version=int(args[1]), key=str(args[2]), note=" ".join(map(_text, args[4:])))


def _key(about: Any) -> Facts:
    return Facts(key=str(about))


def _places(about: Sequence[tuple[Any, Any]]) -> Facts:
    return Facts(ids=tuple(_text(task) for task, _ in about))


ATTEMPTS: dict[str, Callable[[Any], Facts]] = {
    "declare": _declare,
    "submit": _submit,
    "reject": _reject,
    "lease": _lease,
    "progress": _progress,
    "discard": _named,
    "release": _named,
    "leave": lambda _: Facts(),
    "fail": _fail,
    "complete": _complete,
    "resume": _resume,
    "pending": _learners,
    "drain": _learners,
    "fetch": _places,
    "get replay": _key,
    "advance": _learners,
    "skip": _learners,
    "commit": _learners,
    "uncommit": _learners,
    "restore": _learners,
    "publish": _publish,
    "evaluate": _evaluate,
    "scored": lambda _: Facts(),
    "conclude": _conclude,
    "bury": _bury,
    "reject_group": _condemn,
    "revive": _named,
    "finish": lambda _: Facts(),
    "suspend": lambda args: Facts(lineage=int(args[0]), note=_text(args[1])),
    "reinstate": lambda args: Facts(note=" ".join(map(_text, args))),
    "evict": lambda args: Facts(note=_text(args[0])),
    "plan": _plan,
    "order": _order,
    "start machine": _key,
    "end machine": _key,
    "put checkpoints/manifest.json": _key,
    "put once checkpoints/manifest.json": _key,
}


# What was answered ----------------------------------------------------------------------------------------------------

# A move's answer is a list, one reply for each call that went with it; only a completion has several.


def _said(about: Any, answer: Any) -> Facts:
    return Facts(note=str(answer[0]) if isinstance(answer[0], int) else "")


def _leased(about: Any, answer: Any) -> Facts:
    """Returns the leased tasks, the learner's version at that time, and whether the worker is a keeper of the round."""
    lease = replies.lease_of(answer[0])
    ids = tuple(task.id for task in lease.tasks)
    partials = tuple(Begun.told(*kept) for kept in replies.kept_of(answer[0]).items())
    lineage, version = lease.learner_version
    return Facts(ids=ids, partials=partials, lineage=lineage, version=version, note=KEEPS if lease.keeps else "")


def _completed(about: Any, answer: Any) -> Facts:
    return Facts(outcomes=tuple(_text(outcome) for outcomes in answer for outcome in outcomes))


def _resumed(about: Any, answer: Any) -> Facts:
    return replace(_resume(about), lineage=int(answer[0][0]))


def _asked(about: Any, answer: Any) -> Facts:
    """Returns the round's number; nothing if none was begun."""
    number = answer[0][0] if isinstance(answer[0], list) and answer[0] else None
    return Facts(round=number)


def _scored(about: Any, answer: Any) -> Facts:
    return Facts(ids=tuple(_text(words[b"id"]) for _, words, told in answer if told))


def _rows(about: Any, answer: Any) -> Facts:
    return Facts(ids=tuple(_text(row[0]) for row in answer[0][0]))


def _fetched(about: Any, answer: Any) -> Facts:
    """Groups that lie in the store are seen when they are read there."""
    held = (rows[0][1].get(b"group") for rows in answer if rows)
    return Facts(groups=tuple(made for data in held if data and (made := _made(data))))


def _read_back(about: Any, answer: Any) -> Facts:
    made = _made(answer)
    return Facts(groups=(made,) if made else ())


def _made(data: bytes) -> Generated | None:
    try:
        return Generated.of(decode(data))
    except CodecError:
        return None  # the learner will say so itself


def _put(about: Any, answer: Any) -> Facts:
    return _key(about)


ANSWERS: dict[str, Callable[[Any, Any], Facts]] = dict.fromkeys(ATTEMPTS, _said) | {
    "lease": _leased,
    "complete": _completed,
    "evaluate": _asked,
    "scored": _scored,
    "resume": _resumed,
    "pending": _rows,
    "drain": _rows,
    "fetch": _fetched,
    "get replay": _read_back,
    "put checkpoints/manifest.json": _put,
    "put once checkpoints/manifest.json": _put,
    "start machine": _put,
    "end machine": _put,
}
