"""Each client makes the moves that its role's Redis user may make, and no others; Lua, ACL and Python say the same."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from echo_queue.connections.secrets import Role
from echo_queue.queue import (
    Admin,
    EvaluationQueue,
    Evaluations,
    FleetQueue,
    LearnerQueue,
    Monitor,
    Operator,
    PeerDirectory,
    SubmitterQueue,
    TrustedWeights,
    UpdateRecords,
    WorkerQueue,
    library,
)
from echo_queue.queue.acl import CONTROLLER_CALLS, SUBMITTER_CALLS, WORKER_CALLS, rules
from echo_queue.queue.caller import Client
from echo_queue.queue.payload_fields import COMPLETE_WORDS, PROGRESS_WORDS
from tests.source_code import ROOT

CLIENTS = (
    WorkerQueue,
    PeerDirectory,
    TrustedWeights,
    SubmitterQueue,
    LearnerQueue,
    Operator,
    Admin,
    Monitor,
    FleetQueue,
    EvaluationQueue,
    Evaluations,
    UpdateRecords,
)
ASKING = ("call", "move", "ask", "_numbered", "_later")
"""Methods whose first argument names a function of the server."""
CONFIRM = {"confirm"}
"""The functions that `Caller` itself calls, where moves wait for replicas."""
READ_ONLY = {"audit", "status"}
FILES = {
    "partials": (WorkerQueue, Operator),
    "completion": (WorkerQueue,),
    "worker": (WorkerQueue,),
    "leasing": (WorkerQueue,),
    "evaluation": (EvaluationQueue,),
    "peers": (PeerDirectory,),
    "backlog": (SubmitterQueue,),
    "submission": (SubmitterQueue,),
    "learner": (LearnerQueue,),
    "lease_expiry": (Operator,),
    "operator": (Operator, LearnerQueue),
    "fleet": (FleetQueue,),
    "monitor": (Monitor,),
}
"""Lua file → the clients of its moves."""


def moves(client: type[Client]) -> set[str]:
    """Names of the functions that a client calls, by its code and that of what it derives from."""
    return {name for owner in client.__mro__ if issubclass(owner, Client) for name in _called(owner)}


def _called(owner: type) -> Iterator[str]:
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(owner)))):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[ast.Constant(value=str(move)), *_]) if name in ASKING:
                yield move


def of_role(role: Role) -> set[str]:
    return {move for client in CLIENTS if role == client.ROLE for move in moves(client)}


def registered() -> dict[str, bool]:
    """Function of the library → whether it only reads."""
    lines = re.findall(r"^register\('(\w+)'.*$", library.source(), re.MULTILINE)
    read_only = set(re.findall(r"^register\('(\w+)'.*'no-writes'\)$", library.source(), re.MULTILINE))
    return {name: name in read_only for name in lines}


def test_a_worker_has_a_method_for_each_move_that_it_may_make_and_no_other() -> None:
    assert of_role("worker") | CONFIRM == set(WORKER_CALLS)


def test_a_submitter_has_a_method_for_each_move_that_it_may_make_and_no_other() -> None:
    assert of_role("submitter") | CONFIRM == set(SUBMITTER_CALLS)


def test_a_controller_has_a_method_for_each_move_that_it_may_make_and_reads_besides() -> None:
    assert of_role("controller") | CONFIRM == set(CONTROLLER_CALLS) | READ_ONLY


def test_a_monitor_has_a_method_for_each_function_that_only_reads_and_no_other() -> None:
    assert of_role("monitor") == READ_ONLY == {name for name, reads in registered().items() if reads}
    assert "+fcall_ro" in rules("monitor", "r", "c").split() and "+fcall" not in rules("monitor", "r", "c").split()


def test_a_learner_may_make_all_moves_and_has_methods_for_those_of_its_own() -> None:
    assert "+fcall" in rules("learner", "r", "c").split()
    others = set(WORKER_CALLS) | set(CONTROLLER_CALLS) | set(SUBMITTER_CALLS) - {"admit"}
    assert of_role("learner") == set(registered()) - others
    assert moves(LearnerQueue) & moves(Operator) == set()


def test_only_an_admin_installs() -> None:
    assert [client.__name__ for client in CLIENTS if hasattr(client, "install")] == ["Admin"]
    assert moves(Admin) == moves(Operator)


def test_every_client_names_a_role_that_there_is() -> None:
    assert {client.ROLE for client in CLIENTS} == set(get_args(Role)) - {"celery"}


def test_the_page_of_the_architecture_says_who_makes_each_move() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| move | caller |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([\w, ]+) \| ([\w, ]+) \|", table, re.MULTILINE)
    callers = {move: who.split(", ") for names, who in rows for move in names.split(", ")}
    assert set(callers) == set(registered()) - CONFIRM
    calls = {"worker": WORKER_CALLS, "submitter": SUBMITTER_CALLS, "controller": CONTROLLER_CALLS}
    told = {role: {move for move, who in callers.items() if role in who} for role in calls}
    assert told == {role: set(names) - CONFIRM for role, names in calls.items()}


@pytest.mark.parametrize("file", FILES)
def test_clients_are_divided_as_the_library_is(file: str) -> None:
    source = (library.FOLDER / f"{file}.lua").read_text(encoding="utf-8")
    here = set(re.findall(r"^local function (\w+)\(keys", source, re.MULTILINE))
    here |= {"admit"} if file == "backlog" else set()
    assert here == set(re.findall(r"^register\('(\w+)'", source, re.MULTILINE)), "each file registers its own moves"
    assert here <= {move for client in FILES[file] for move in moves(client)}


def test_every_file_of_the_library_has_its_clients() -> None:
    assert set(FILES) == set(library.FILES) - {"state", "curriculum", "mixture", "cancellation"}
    assert {path.stem for path in Path(str(library.FOLDER)).glob("*.lua")} == set(library.FILES)


@pytest.mark.parametrize(
    ("move", "words"),
    [
        ("complete", (*COMPLETE_WORDS, "group|ref", "payload")),
        ("progress", (*PROGRESS_WORDS, "segment|ref", "payload")),
    ],
)
def test_what_a_move_is_told_is_said_alike_in_lua_and_in_python(move: str, words: tuple[str, ...]) -> None:
    stated = re.search(
        rf"^-- args: worker ([\w| ]+).*\n(?:--.*\n)*local function {move}\(", library.source(), re.MULTILINE
    )
    assert stated and tuple(stated[1].split()) == words
