"""The shape of the code: rooms, in which order they may know one another, and how wide they may be."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from echo_queue import queue
from echo_queue.launch import roles
from echo_queue.queue.caller import Caller, Client
from tests.source_code import PRODUCT, ROOT, files, nodes_of, parents_of, tree_of

FLOORS = (
    ("errors", "failpoints", "documents", "checked_thread", "file_lock"),
    ("atomic_file", "config"),
    ("records", "models", "connections"),
    ("queue", "evaluation"),
    ("weights", "reporting", "launch"),
    ("submission", "capacity"),
    ("fleet",),
    ("cli",),
    ("__main__",),
)
"""The rooms of `echo_queue`, from the ground up. A room imports from the floors below its own, and from itself."""
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
MOST_FLOORS = 9
HOUSE = (*PRODUCT, "benchmarks", "tests")
BY_NAME = {"import_module", "importlib", "run_module", "runpy"}
"""Who imports one of these imports modules by their names."""
MOST_FOLDERS = 13
MOST_FILES = 9
MOST_PUBLIC = 20
CLIENTS = tuple(one for _, one in inspect.getmembers(queue, inspect.isclass) if issubclass(one, Client))
HANDLES = (*(client.__name__ for client in CLIENTS), "Caller", "Payloads")
"""The objects with which a role speaks to the queue: it calls methods, and neither sets nor reads the rest."""


def modules(package: str) -> Iterator[Path]:
    return (ROOT / file for file in files((package,)))


def parsed(module: Path) -> ast.Module:
    return tree_of(module.relative_to(ROOT).as_posix())


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports, wherever in it; of `from a import b` both `a` and `a.b`.

    What stands after "-m", and in a module that imports by name every text that names a module of ours, is one of them.
    """
    nodes = nodes_of(tree)
    by_name = any(isinstance(node, ast.alias) and node.name in BY_NAME for node in nodes)
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if by_name and "." in text and is_ours(text.partition(":")[0]):
                yield text.partition(":")[0]
            case ast.List(elts=words) | ast.Tuple(elts=words) | ast.Call(args=words):
                yield from started(words)
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                yield origin
                yield from (f"{origin}.{name.name}" for name in names)


def started(words: list[ast.expr]) -> Iterator[str]:
    """The modules of ours that a command's words start."""
    for word, after in pairwise(words):
        match word, after:
            case ast.Constant(value="-m"), ast.Constant(value=str(dotted)) if is_ours(dotted):
                yield dotted


def is_ours(dotted: str) -> bool:
    """Returns whether these words and dots name a module or a package of this tree."""
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def room_of(dotted: str, house: str) -> str:
    """The room of `house` (a package, or a room of one) in which this name is; empty if it is elsewhere."""
    return dotted.removeprefix(f"{house}.").partition(".")[0] if dotted.startswith(f"{house}.") else ""


def arrows(house: str) -> Mapping[str, Set[str]]:
    """Each room of a package, or of a room, and the others in it from which it imports."""
    found: dict[str, set[str]] = {}
    for module in modules(house.replace(".", "/")):
        room = module.relative_to(ROOT.joinpath(*house.split("."))).with_suffix("").parts[0]
        found.setdefault(room, set()).update(room_of(dotted, house) for dotted in imports(parsed(module)))
    return {room: (others & set(found)) - {room} for room, others in found.items()}


def floors_of(rooms: Mapping[str, Set[str]]) -> int:
    """The number of floors on which the rooms stand. Raises `CycleError`, which names them, for rooms in a circle."""
    order, floors = TopologicalSorter(rooms), 0
    order.prepare()
    while order.is_active():
        order.done(*order.get_ready())
        floors += 1
    return floors


def test_every_room_has_a_floor() -> None:
    rooms = {path.relative_to(ROOT / "echo_queue").parts[0] for path in (ROOT / "echo_queue").rglob("*.py")}
    assert {room.removesuffix(".py") for room in rooms} - {"__init__"} == set(FLOOR)


def test_arrows_between_rooms_lead_downward_only() -> None:
    known = arrows("echo_queue")
    upward = [
        f"{room} imports {other}" for room in FLOOR for other in known[room] if FLOOR.get(other, 0) >= FLOOR[room]
    ]
    assert not sorted(upward)


@pytest.mark.parametrize("package", PRODUCT)
def test_a_package_has_few_floors_and_no_circle_of_rooms(package: str) -> None:
    assert floors_of(arrows(package)) <= MOST_FLOORS


@pytest.mark.parametrize("room", ["echo_queue.capacity", "echo_queue.cli", "echo_queue.launch", "workers.weights"])
def test_rooms_in_a_room_know_one_another_in_one_direction(room: str) -> None:
    assert floors_of(arrows(room))


def test_a_circle_is_seen() -> None:
    with pytest.raises(CycleError, match="cycle"):
        floors_of({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def test_the_top_of_the_package_stays_small() -> None:
    entries = [path for path in (ROOT / "echo_queue").iterdir() if path.name != "__pycache__"]
    folders = [path for path in entries if path.is_dir()]
    assert len(folders) <= MOST_FOLDERS
    assert len(entries) - len(folders) <= MOST_FILES


@pytest.mark.parametrize("package", PRODUCT)
def test_workers_and_learner_meet_only_in_echo_queue(package: str) -> None:
    """And the product knows neither its benchmarks nor its tests. The house has two floors then."""
    forbidden = set(HOUSE) - {package, "echo_queue"}
    guilty = {
        str(module.relative_to(ROOT)): dotted
        for module in modules(package)
        for dotted in imports(parsed(module))
        if dotted.partition(".")[0] in forbidden
    }
    assert not guilty


def test_what_stands_above_is_started_through_one_door() -> None:
    """`launch.roles` starts the programs of workers and learner as processes, and imports none of them."""
    assert all(map(is_ours, roles.EXTRA))


@pytest.mark.parametrize("package", ["workers", "learner"])
def test_what_generates_or_trains_knows_no_price(package: str) -> None:
    """What both know of a model is in `echo_queue.models`, below the planner."""
    guilty = [
        str(module)
        for module in modules(package)
        if any(room_of(dotted, "echo_queue") == "capacity" for dotted in imports(parsed(module)))
    ]
    assert not guilty


@pytest.mark.parametrize(
    "line",
    [
        "import learner.leader",
        "from learner import leader",
        "from importlib import import_module\nimport_module('learner.leader')",
        "import importlib\nOPEN = {'fast': 'learner.leader:Leader'}\nimportlib.import_module(OPEN[kind])",
        "import runpy\nrunpy.run_module('learner.leader')",
        "subprocess.Popen([*PYTHON, '-m', 'learner.leader', str(path)])",
        "os.execl(python, '-m', 'learner.leader')",
    ],
)
def test_an_import_is_seen_by_whatever_words(line: str) -> None:
    assert "learner.leader" in set(imports(ast.parse(line)))


@pytest.mark.parametrize("module", ["worker.py", "rollout_loop.py"])
def test_the_worker_knows_weights_by_one_class(module: str) -> None:
    names = {dotted for dotted in imports(parsed(ROOT / "workers" / module)) if dotted.startswith("workers.weights")}
    assert names == {"workers.weights", "workers.weights.WeightSync"}


def test_only_the_registry_names_a_transport() -> None:
    """Staging and swapping work with any transport."""
    inside = ("workers.weights.peers", "workers.weights.folder", "workers.weights.cache")
    guilty = {
        module.name: dotted
        for module in (ROOT / "workers" / "weights").glob("*.py")
        if module.name not in ("folder.py", "registry.py")
        for dotted in imports(parsed(module))
        if dotted.startswith(inside)
    }
    assert not guilty


def test_torch_is_imported_by_weights_alone() -> None:
    """A submitter or a monitor installs none."""
    guilty = [
        str(module.relative_to(ROOT))
        for module in modules("echo_queue")
        if "weights" not in module.parts
        if any(dotted.partition(".")[0] == "torch" for dotted in imports(parsed(module)))
    ]
    assert not guilty


def test_there_are_clients() -> None:
    names = {client.__name__ for client in CLIENTS}
    assert {"WorkerQueue", "LearnerQueue", "SubmitterQueue", "Operator", "Monitor", "PeerDirectory"} <= names


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_a_client_has_few_public_methods_and_keeps_what_it_holds_to_itself(client: type[Client]) -> None:
    public = [name for name in dir(client) if not name.startswith("_") and name != "ROLE"]
    assert len(public) <= MOST_PUBLIC, public
    assert all(name.startswith("_") for name in vars(client(Caller(redis.Redis(), "run"))))


@pytest.mark.parametrize("package", ["echo_queue", "workers", "learner", "benchmarks"])
def test_nobody_sets_an_attribute_of_a_client_or_reaches_through_one(package: str) -> None:
    guilty = {
        f"{module.relative_to(ROOT)}:{line}": what
        for module in modules(package)
        if not module.is_relative_to(ROOT / "echo_queue" / "queue")
        for line, what in intrusions(parsed(module))
    }
    assert not guilty


@pytest.mark.parametrize(
    "line",
    [
        "queue.deadline_s = 1",
        "queue.limits: object = 1",
        "self._queue.payloads.validator = 1",
        "store.deadline_s = queue.deadline_s = 1",
        "host = queue.client.connection_pool",
        "queue.client.get(key)",
        "queue._caller",
        "self._queue.keys['open']",
        "made.client.get(key)",
        "both.keys.open",
        "setattr(queue, 'deadline_s', 1)",
        "again.client.get(key)",
        "WorkerQueue(caller).caller.deadline_s",
    ],
)
def test_an_intrusion_is_seen(line: str) -> None:
    assert list(intrusions(ast.parse(GIVEN + line)))


@pytest.mark.parametrize(
    "line", ["queue.lease(name).tasks", "hand(self._queue.release)", "queue.run == run", "config.queue.lease_s + 1"]
)
def test_a_call_is_no_intrusion(line: str) -> None:
    assert not list(intrusions(ast.parse(GIVEN + line)))


GIVEN = """
def begin(self, queue: WorkerQueue, other: "LearnerQueue | None") -> None:
    self._queue = queue
made = Monitor.connect(config)
one, both = 1, Operator(caller)
again = made
"""


def intrusions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the places that set an attribute of a client, reach through one, or use what is private."""
    names, parents = handles(tree), parents_of(tree)
    for node in nodes_of(tree):
        match node:
            case ast.Call(func=ast.Name(id="setattr"), args=[held, *_]) if last(held) in names:
                yield node.lineno, ast.unparse(node)
            case ast.Attribute(value=held, attr=member) if last(held) in names or made(held):
                reached = isinstance(parents[node], ast.Attribute | ast.Subscript)
                if reached or member.startswith("_") or not isinstance(node.ctx, ast.Load):
                    yield node.lineno, ast.unparse(node)


def handles(tree: ast.Module) -> set[str]:
    """Names under which clients go in this code: by annotation, by construction, and by being given another name."""
    names = {
        last(node.target) if isinstance(node, ast.AnnAssign) else node.arg
        for node in nodes_of(tree)
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None
        if set(re.findall(r"\w+", ast.unparse(node.annotation))) & set(HANDLES)
    }
    pairs = [pair for node in nodes_of(tree) if isinstance(node, ast.Assign) for pair in assigned(node)]
    while more := {last(name) for name, value in pairs if made(value) or last(value) in names} - names - {""}:
        names |= more
    return names - {""}


def assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        match target, node.value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                yield from zip(targets, values, strict=True)
            case _:
                yield target, node.value


def made(value: ast.expr) -> bool:
    """Returns whether this is a call of a client's class, or of one of its class methods."""
    match value:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in HANDLES
    return False


def last(expression: ast.expr) -> str:
    """`_queue` of `self._queue`; empty for what has no name."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
