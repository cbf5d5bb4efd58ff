"""The shape of the code: rooms, in which order they may know one another, and how wide they may be."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = (
    ("errors", "failpoints"),
    ("atomic_file",),
    ("config", "launch"),
    ("records",),
    ("storage",),
    ("connections",),
    ("queue",),
    ("weights", "submission", "services", "reporting"),
    ("cli",),
)
"""The rooms of `echo_queue`, from the ground up. A room imports from the floors below its own, and from itself."""
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}
MOST_FOLDERS = 12
MOST_FILES = 6


def modules(package: str) -> Iterator[Path]:
    return (ROOT / package).rglob("*.py")


def imports(module: Path) -> Iterator[str]:
    """Dotted names that the module imports, wherever in it; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                yield origin
                yield from (f"{origin}.{name.name}" for name in names)


def room_of(dotted: str) -> str | None:
    """The room of `echo_queue` in which this name is, if any."""
    package, _, rest = dotted.partition(".")
    return rest.partition(".")[0] or None if package == "echo_queue" else None


def arrows() -> set[tuple[str, str]]:
    """(room, room that it imports from), for the rooms of `echo_queue`."""
    found = set()
    for module in modules("echo_queue"):
        room = module.relative_to(ROOT / "echo_queue").with_suffix("").parts[0]
        for dotted in imports(module):
            if (other := room_of(dotted)) in FLOOR and other != room:
                found.add((room, str(other)))
    return found


def test_every_room_has_a_floor() -> None:
    rooms = {path.stem for path in (ROOT / "echo_queue").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__pycache__"} == set(FLOOR)


def test_arrows_between_rooms_lead_downward_only() -> None:
    """There is then no circle either."""
    upward = [f"{room} imports {other}" for room, other in arrows() if FLOOR[other] >= FLOOR[room]]
    assert not sorted(upward)


def test_the_top_of_the_package_stays_small() -> None:
    entries = [path for path in (ROOT / "echo_queue").iterdir() if path.name != "__pycache__"]
    folders = [path for path in entries if path.is_dir()]
    assert len(folders) <= MOST_FOLDERS
    assert len(entries) - len(folders) <= MOST_FILES


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [("workers", "learner"), ("learner", "workers"), ("echo_queue", "workers"), ("echo_queue", "learner")],
)
def test_workers_and_learner_meet_only_in_echo_queue(package: str, forbidden: str) -> None:
    guilty = {
        str(module.relative_to(ROOT)): dotted
        for module in modules(package)
        for dotted in imports(module)
        if dotted.partition(".")[0] == forbidden
    }
    assert not guilty


@pytest.mark.parametrize("module", ["worker.py", "rollout_loop.py"])
def test_the_worker_knows_weights_by_one_class(module: str) -> None:
    names = {dotted for dotted in imports(ROOT / "workers" / module) if dotted.startswith("workers.weights")}
    assert names == {"workers.weights", "workers.weights.WeightSync"}


def test_only_the_registry_names_a_transport() -> None:
    """What stages and swaps versions works with any of them."""
    inside = ("workers.weights.peers", "workers.weights.folder", "workers.weights.cache")
    guilty = {
        module.name: dotted
        for module in (ROOT / "workers" / "weights").glob("*.py")
        if module.name != "folder.py"
        for dotted in imports(module)
        if dotted.startswith(inside)
    }
    assert not guilty


def test_torch_is_imported_by_weights_alone() -> None:
    """A submitter or a monitor installs none."""
    guilty = [
        str(module.relative_to(ROOT))
        for module in modules("echo_queue")
        if "weights" not in module.parts and any(dotted.partition(".")[0] == "torch" for dotted in imports(module))
    ]
    assert not guilty
