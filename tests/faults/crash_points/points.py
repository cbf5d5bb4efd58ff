"""Every crash point of every role, found in the code itself (`echo_queue.failpoints` says what a step is).

- A failpoint's name is a literal, or is made by a *forwarder* of its own arguments (`Caller.persist`, `Caller.call`,
  `ObjectStore._persist`, `write_atomically`, …). Forwarders are found from `failpoints.step` outwards, not listed.
- A role's points are the failpoints in its own units, and those inside the methods of queue clients and of the store
  that it calls.
- Only which kinds of object a file's store requests concern (`KINDS`) is written down; recording each role proves it.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tests.source_code import ROOT, files, nodes_of, tree_of

QUEUE, STORE = "echo_queue/queue/", "echo_queue/connections/storage/object_store.py"
CALLER, PAYLOADS = "echo_queue/queue/caller.py", "echo_queue/queue/payloads.py"
QUEUE_CLIENTS = ("queue", "monitor", "operator", "admin", "directory", "told")
"""The names of the queue's clients (of classes that derive from `Client`) where they are used."""
CONNECT = "echo_queue/connections/connect.py"

ROLES: Mapping[str, tuple[str, ...]] = {
    "submitter": (
        *(f"echo_queue/submission/{name}.py" for name in ("__init__", "declaration", "arrival")),
        *(f"echo_queue/submission/celery/{name}.py" for name in ("reconciler", "messages")),
    ),
    "celery": (
        "echo_queue/submission/expand.py",
        *(f"echo_queue/submission/celery/{name}.py" for name in ("reconciler", "messages", "worker_steps")),
        "echo_queue/submission/shards.py:write",
        CONNECT,
    ),
    "worker": (
        "workers/*.py",
        "workers/weights/*.py",
        "workers/weights/*/*.py",
        "workers/environments/process.py",
        "echo_queue/submission/shards.py:ShardReader",
        "echo_queue/weights/apply_path.py",
        "echo_queue/weights/catalogue.py",
        *(f"echo_queue/weights/reader.py:{name}" for name in ("read_manifest", "find_path", "_Search")),
        CONNECT,
    ),
    "learner": (
        *(f"learner/{name}.py" for name in ("training_loop", "run_start", "leader", "batch_collector", "housekeeper")),
        "learner/lease_sweeper.py",
        *(
            f"learner/recovery/{name}.py"
            for name in ("resume", "checkpoint", "archive", "background_saver", "state_files", "state_reader")
        ),
        "learner/ranks/team.py",
        "learner/export/model_folder.py:put_in_place",
        "learner/evaluation/*.py",
        "echo_queue/evaluation/stored.py",
        "echo_queue/reporting/evaluation_record.py",
        "echo_queue/connections/store_check.py",
        *(f"learner/publication/{name}.py" for name in ("signing_key", "announcer", "weight_broadcast", "part_thread")),
        *(
            f"echo_queue/weights/{name}.py"
            for name in ("publisher", "part_makers", "signatures", "catalogue", "retention")
        ),
        "echo_queue/reporting/metrics.py",
        "echo_queue/reporting/trained_groups.py",
        CONNECT,
    ),
    "operator": (
        *(f"learner/recovery/{name}.py" for name in ("rewind", "resume")),
        *(f"learner/recovery/checkpoint.py:{name}" for name in ("verify", "_put_manifest")),
        *(f"learner/recovery/archive.py:{name}" for name in ("read", "keys")),
        "learner/recovery/state_reader.py:verified",
        "echo_queue/weights/catalogue.py",
        "echo_queue/reporting/outcome.py:forget",
        CONNECT,
    ),
    "launcher": ("learner/ranks/launcher.py",),
    "base model": ("learner/base_model/*.py",),
    "services": (
        "echo_queue/launch/servers/*.py",
        *(f"echo_queue/connections/{name}.py" for name in ("endpoints", "secrets")),
        "echo_queue/launch/supervisor.py:lock",
        CONNECT,
    ),
    "supervisor": ("echo_queue/launch/supervisor.py",),
}
"""The files (or single functions and classes) of which each role's program consists."""

WEIGHTS, MANIFEST = "weights", "weights/manifest.json"
STATE, CHECKPOINT = "checkpoints", "checkpoints/manifest.json"
BASE = ("base", "base/index.json")
ANSWERS = "evaluations"
PROBE = ".probe"
KINDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "echo_queue/submission/shards.py": {"put": ("prompts",), "get": ("prompts",)},
    "echo_queue/weights/reader.py": {"get": (WEIGHTS, MANIFEST)},
    "echo_queue/weights/publisher.py": {"put": (), "put once": (WEIGHTS, MANIFEST)},
    "echo_queue/weights/part_makers.py": {"put": (WEIGHTS,), "delete": (WEIGHTS,)},
    "echo_queue/weights/catalogue.py": {"list": (WEIGHTS,)},
    "echo_queue/weights/retention.py": {"delete": (WEIGHTS, MANIFEST), "get": ()},
    "workers/weights/fetch.py": {"get": (MANIFEST,)},
    "workers/weights/cache/sources.py": {"stream": (WEIGHTS,)},
    "learner/recovery/checkpoint.py": {"put": (), "put once": (CHECKPOINT,), "delete": (STATE,)},
    "learner/recovery/archive.py": {
        "put": (STATE,),
        "get": (CHECKPOINT, STATE),
        "list": (STATE,),
        "delete": (CHECKPOINT,),
    },
    "learner/recovery/state_files.py": {"put": (STATE,)},
    "learner/recovery/state_reader.py": {"read_into": (STATE,)},
    "learner/housekeeper.py": {"list": ("partials",)},
    "echo_queue/evaluation/stored.py": {"put": (ANSWERS,), "get": (ANSWERS,), "list": (ANSWERS,)},
    "echo_queue/reporting/trained_groups.py": {"put": ("trained",), "list": (), "stream": (), "get": ()},
    "learner/run_start.py": {"exists": BASE[1:], "upload_folder": BASE},
    "workers/base_model.py": {"download_folder": BASE},
    CONNECT: {"check": ("the bucket",)},
    "echo_queue/connections/store_check.py": {
        "put": (PROBE,),
        "get": (PROBE,),
        "size": (PROBE,),
        "exists": (PROBE,),
        "list": (PROBE,),
        "delete": (PROBE,),
        "puts_once": (PROBE,),
    },
    "echo_queue/launch/servers/serving.py": {
        "create_bucket": ("the bucket",),
        "puts_once": (PROBE,),
        "elects_one": (PROBE,),
    },
}
"""The kinds of object (`object_store.kind_of`) that each file's requests concern, by the store's method."""
PAYLOAD_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("keep_group", "group", "discard"), "replay"),
    **dict.fromkeys(("keep_segment", "partials", "partials_of"), "partials"),
}
"""The same of payloads, by the method of `Payloads` that a client calls."""


class Part(NamedTuple):
    """A part of a step's name: `text`, or the function's argument number `argument`; without both, an object's kind."""

    text: str = ""
    argument: int | None = None


Template = tuple[Part, ...]
KIND = Part()


@dataclass(frozen=True)
class Failpoint:
    """A place in the code where a step is taken. `step` has a `*` where it depends on the kind of an object."""

    file: str
    line: int
    step: str


@cache
def points(role: str) -> tuple[str, ...]:
    """Names of all steps of a role, sorted."""
    return tuple(sorted({step for file, tree in _units(role) for step in _steps_of(file, tree)}))


def failpoints() -> Iterator[Failpoint]:
    """Every failpoint of the code whose name is not left to a caller."""
    for file in files():
        yield from _failpoints(file, tree_of(file))


@cache
def forwarders() -> Mapping[tuple[str, str], frozenset[Template]]:
    """(file, function) → the names of the steps that it takes, in terms of its arguments."""
    known: dict[tuple[str, str], frozenset[Template]] = {}
    while True:
        found: dict[tuple[str, str], frozenset[Template]] = {}
        for file in files():
            for function, template in _forwarders_in(file, known):
                found[file, function] = found.get((file, function), frozenset()) | {template}
        if found == known:
            return known
        known = found


def receiver(function: ast.expr) -> str:
    """Returns the last name of the object whose method is called: `queue` of `self._queue.drain`; empty without one."""
    if not isinstance(function, ast.Attribute):
        return ""
    match function.value:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name)):
            return name.lstrip("_").lower()
    return "?"


# What a role does -----------------------------------------------------------------------------------------------------


def _units(role: str) -> Iterator[tuple[str, ast.AST]]:
    for unit in ROLES[role]:
        pattern, _, name = unit.partition(":")
        paths = sorted(ROOT.glob(pattern))
        assert paths, f"no file is called {pattern}"
        for path in paths:
            file = path.relative_to(ROOT).as_posix()
            yield file, _definition(file, name) if name else tree_of(file)


def _steps_of(file: str, tree: ast.AST) -> Iterator[str]:
    """Yields the steps of code that is not the queue's or the store's own."""
    yield from (failpoint.step for failpoint in _failpoints(file, tree))
    for attribute in (node for node in nodes_of(tree) if isinstance(node, ast.Attribute)):
        match receiver(attribute):
            case name if name in QUEUE_CLIENTS:
                yield from _queue_steps(attribute.attr)
            case "store" | "objectstore":
                yield from _store_steps(file, attribute.attr, once=False)
    for call in _calls(tree):  # a `once` can only be seen at the call
        if receiver(call.func) == "store" and any(keyword.arg == "once" for keyword in call.keywords):
            yield from _store_steps(file, "put", once=True)


@cache
def _queue_steps(method: str) -> frozenset[str]:
    """Steps of a method of the queue's clients, with those of the methods that it calls."""
    steps: set[str] = set()
    for file, body in (found for owner in clients() for found in _methods_of(owner, method)):
        steps |= {failpoint.step for failpoint in _failpoints(file, body)}
        for attribute in (node for node in nodes_of(body) if isinstance(node, ast.Attribute)):
            if receiver(attribute) == "payloads":
                steps |= set(_payload_steps(attribute.attr))
    return frozenset(steps)


def _methods_of(owner: tuple[str, str], method: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """A client's method and those of its own and of the clients it derives from that it uses, each with its file."""
    known, waiting, seen = _inherited(owner), [method], {method}
    while waiting:
        if found := known.get(waiting.pop()):
            yield found
            used = _used_of_self(found[1])
            waiting += sorted(used - seen)
            seen |= used


@cache
def _inherited(owner: tuple[str, str]) -> Mapping[str, tuple[str, ast.FunctionDef]]:
    """The methods of a client by name, with those of the clients from which it derives."""
    file, name = owner
    found: ast.ClassDef = _definition(file, name)  # type: ignore[assignment]
    bases = [base.id for base in found.bases if isinstance(base, ast.Name)]
    known: dict[str, tuple[str, ast.FunctionDef]] = {}
    for inner in (client for base in reversed(bases) for client in clients() if client[1] == base):
        known |= _inherited(inner)
    return known | {part.name: (file, part) for part in found.body if isinstance(part, ast.FunctionDef)}


def _used_of_self(body: ast.FunctionDef) -> set[str]:
    return {node.attr for node in nodes_of(body) if isinstance(node, ast.Attribute) and receiver(node) == "self"}


def _payload_steps(method: str) -> Iterator[str]:
    """Steps of a method of `Payloads`."""
    for inner in _methods(PAYLOADS, "Payloads", method):
        for attribute in (node for node in nodes_of(inner) if isinstance(node, ast.Attribute)):
            if receiver(attribute) == "store":
                yield from _filled(attribute.attr, (PAYLOAD_KINDS[method],))


@cache
def clients() -> tuple[tuple[str, str], ...]:
    """(file, class) of everything that derives from `Client`, itself included."""
    owners = {
        node.name: (file, node)
        for file in files()
        if file.startswith(QUEUE)
        for node in nodes_of(tree_of(file))
        if isinstance(node, ast.ClassDef)
    }

    def is_client(name: str) -> bool:
        bases = [base.id for base in owners[name][1].bases if isinstance(base, ast.Name)] if name in owners else []
        return name == "Client" or any(map(is_client, bases))

    return tuple((owners[name][0], name) for name in owners if is_client(name))


@cache
def _store_steps(file: str, method: str, *, once: bool) -> frozenset[str]:
    """Steps of a method of the store, called in `file`."""
    operation = "put once" if once else method
    if not _patterns(method, once=once):
        return frozenset()
    try:
        kinds = KINDS[file][operation]
    except KeyError:
        raise AssertionError(f"say in KINDS which objects `{operation}` of the store concerns in {file}") from None
    probes = {probe.replace("*", PROBE) for probe in _patterns("puts_once", once=True)} if once else set()
    return frozenset(_filled(method, kinds, once=once)) | probes


def _filled(method: str, kinds: tuple[str, ...], *, once: bool = False) -> Iterator[str]:
    return (pattern.replace("*", kind) for pattern in _patterns(method, once=once) for kind in kinds)


def _patterns(method: str, *, once: bool) -> frozenset[str]:
    """Steps of a method of the store, with a `*` for the kind of the object."""
    bodies = _methods(STORE, "ObjectStore", method, once=once)
    return frozenset(failpoint.step for body in bodies for failpoint in _failpoints(STORE, body))


def _methods(file: str, owner: str, method: str, once: bool = True) -> Iterator[ast.FunctionDef]:
    """A method and those of the same class that it uses. Of `put` without `once`, only what comes first."""
    waiting, seen = [method], {method, *(("puts_once",) if method != "puts_once" else ())}
    body: list[ast.stmt] = _definition(file, owner).body  # type: ignore[attr-defined]
    known = {part.name: part for part in body if isinstance(part, ast.FunctionDef)}
    while waiting:
        found = known.get(waiting.pop())
        if found is None:
            continue
        if not once and found.name == "put":
            found = ast.FunctionDef("put", found.args, found.body[:2], [], lineno=0)
        yield found
        used = _used_of_self(found)
        waiting += sorted(used - seen)
        seen |= used


# Failpoints and their names -------------------------------------------------------------------------------------------


def _failpoints(file: str, tree: ast.AST) -> Iterator[Failpoint]:
    for call in _calls(tree):
        for template in _templates(file, call, forwarders()):
            name = _fill(template, call, {})
            if name is not None:
                yield Failpoint(file, call.lineno, "".join(part.text or "*" for part in name))


def _templates(file: str, call: ast.Call, known: Mapping[tuple[str, str], frozenset[Template]]) -> frozenset[Template]:
    """Returns the names of `call` as a failpoint or a forwarder; its form decides, as names are ambiguous."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    match receiver(call.func), name:
        case "failpoints", "step":
            return frozenset({(Part(argument=0),)})
        case "self", _:
            return known.get((file, name), frozenset())
        case "caller", _:
            return known.get((CALLER, name), frozenset())
        case "", "write_atomically":
            return known.get(("echo_queue/atomic_file.py", "write_atomically"), frozenset())
    return frozenset()


def _forwarders_in(file: str, known: Mapping[tuple[str, str], frozenset[Template]]) -> Iterator[tuple[str, Template]]:
    for function in (node for node in nodes_of(tree_of(file)) if isinstance(node, ast.FunctionDef)):
        parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
        places = {name: place for place, name in enumerate(parameters)}
        for call in _calls(function):
            for template in _templates(file, call, known):
                name = _fill(template, call, places)
                if name is not None and any(part.argument is not None for part in name):
                    yield function.name, name


def _fill(template: Template, call: ast.Call, places: Mapping[str, int]) -> Template | None:
    """The name of the step that `call` takes, in terms of its function's arguments; None if it cannot be told."""
    parts: list[Part] = []
    for part in template:
        if part.argument is None:
            parts.append(part)
            continue
        given = _parts(call.args[part.argument], places) if part.argument < len(call.args) else None
        if given is None:
            return None
        parts += given
    return tuple(parts)


def _parts(expression: ast.expr, places: Mapping[str, int]) -> Template | None:
    match expression:
        case ast.Constant(value=str(text)):
            return (Part(text),)
        case ast.Name(id=name) if name in places:
            return (Part(argument=places[name]),)
        case ast.Call(func=ast.Name(id="kind_of")):
            return (KIND,)
        case ast.JoinedStr(values=values):
            inner = [_parts(part.value if isinstance(part, ast.FormattedValue) else part, places) for part in values]
            return None if None in inner else tuple(part for found in inner for part in found or ())
    return None


def _definition(file: str, name: str) -> ast.AST:
    return next(node for node in nodes_of(tree_of(file)) if getattr(node, "name", None) == name)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in nodes_of(tree) if isinstance(node, ast.Call))
