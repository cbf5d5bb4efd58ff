"""Where the code writes, sends or spawns without passing a door, and why it may.

A call is behind a door if it stands in what is given to one (a lambda, a `partial`, the function itself), or in a
function of the same file all of whose uses stand there. Reads of files, and folders that may exist already, change
nothing that a crash could leave in between.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tests.faults.points import files, receiver, tree_of

ALLOWED: Mapping[str, str] = {
    "echo_queue/queue/library.py:load": "called at the door `install`, and inside the retry loop",
    "echo_queue/services/connect.py:_open_redis": "a ping, which changes nothing",
    "echo_queue/services/redis_server.py:RedisServer._await_ready": "a ping, which changes nothing",
    "echo_queue/services/s3_server.py:S3Server._await_ready": "connects and says nothing",
    "echo_queue/services/process.py:ServerProcess._held": "tries a lock and lets it go at once",
    "echo_queue/services/process.py:ServerProcess.launch": "lock and log of what passes the door `launch server`",
    "echo_queue/services/process.py:ServerProcess._keep_log_short": "a log",
    "echo_queue/store.py:ObjectStore.download_folder": "its draft, which nobody reads",
    "echo_queue/telemetry.py:MetricsLog.__init__": "opens the log; what is written passes a door",
    "echo_queue/report.py:write": "a report for people, made again at any time",
    "echo_queue/tensorboard.py:write": "likewise",
    "echo_queue/cli/output.py:print_json": "the terminal",
    "echo_queue/cli/config.py:_room": "tries whether the directory can be written",
    "echo_queue/cli/roles.py:become": "becomes the role",
    "echo_queue/guard.py:_signal": "the guard: it has no state, and ends what it was told of",
    "echo_queue/guard.py:_lives": "asks whether a process lives",
    "echo_queue/supervisor.py:Kept.start": "a line in the role's log",
    "echo_queue/supervisor.py:Supervisor._tell": "fills the buffer that the door `tell guard` sends",
    "echo_queue/supervisor.py:spawn": "what `Kept.start` calls at the door `spawn role`",
    "echo_queue/supervisor.py:lock": "waits for the lock; what is noted in it passes a door",
    "echo_queue/supervisor.py:_process_lives": "asks whether a process lives",
    "workers/environments/pipe.py:Pipe": "the frames of the doors `ask scorer` and `hear scorer`",
    "learner/base_model/__init__.py:make": "the folder of its drafts, removed at the end",
    "learner/base_model/build.py:build": "its draft, at the door `build base`",
    "learner/rewind.py:_act": "an operator's command, given again if it was interrupted",
    "learner/train.py:export": "removes an old draft, which nobody reads",
}
"""File and function (or class) → why what it does outside of a door does not matter."""

PATHS = ("write_text", "write_bytes", "rename", "unlink", "touch", "symlink_to", "hardlink_to", "rmdir")
REDIS = (
    *("fcall", "fcall_ro", "xadd", "xread", "xdel", "xack", "xrange", "xrevrange", "hset", "hget", "hmget", "hgetall"),
    *("set", "get", "delete", "expire", "llen", "zrange", "publish", "execute", "execute_command", "ping", "flushall"),
    *("acl_load", "function_load"),
)
S3 = ("put_object", "get_object", "head_object", "list_objects_v2", "delete_object", "delete_objects", "create_bucket",
      "upload_file", "download_file", "copy_object", "create_multipart_upload")  # fmt: skip
CELERY = ("send_task", "apply_async", "delay")
OS = ("kill", "killpg", "rename", "replace", "remove", "unlink", "write", "truncate", "link", "symlink", "fsync")
MODULES: Mapping[str, tuple[str, ...]] = {
    "os": (*OS, "execv", "fork"),
    "subprocess": ("Popen", "run", "check_call", "check_output"),
    "shutil": ("rmtree", "move", "copy", "copyfile", "copytree"),
    "socket": ("create_connection",),
    "fcntl": ("flock", "lockf"),
    "tempfile": ("TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory", "mkstemp", "mkdtemp"),
    "library": ("load",),
}
METHODS = (*PATHS, *S3, *CELERY, "save_pretrained", "sendall", "flush", "truncate")
DOORS = {("doors", "take"), ("caller", "persist"), ("self", "_persist"), ("self", "persist")}
CLIENTS = ("client", "pipe", "connection", "server")


@dataclass(frozen=True)
class Act:
    """Something that writes, sends or spawns. `place`: file and qualified name of the function."""

    place: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.place} (line {self.line}): {self.what}"


def unseen() -> list[Act]:
    """What no door sees and no reason excuses."""
    return [act for act in _all() if not any(_covers(allowed, act.place) for allowed in ALLOWED)]


def idle_reasons() -> list[str]:
    """Entries of `ALLOWED` that excuse nothing."""
    acts = _all()
    return [allowed for allowed in ALLOWED if not any(_covers(allowed, act.place) for act in acts)]


def _covers(allowed: str, place: str) -> bool:
    return place == allowed or place.startswith(f"{allowed}.")


@cache
def _all() -> tuple[Act, ...]:
    return tuple(act for file in files() for act in _acts(file))


def _acts(file: str) -> Iterator[Act]:
    tree = tree_of(file)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    behind = _functions_behind_doors(tree, parents)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (what := _io(node)) and not _behind(node, parents, behind):
            yield Act(f"{file}:{qualified(node, parents)}", node.lineno, what)


def _functions_behind_doors(tree: ast.Module, parents: Mapping[ast.AST, ast.AST]) -> frozenset[str]:
    """Names of functions that are used in this file, and only behind doors."""
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    uses: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in defined:
            uses.setdefault(name, []).append(node)
    behind: frozenset[str] = frozenset()
    while True:
        more = frozenset(name for name, nodes in uses.items() if all(_behind(node, parents, behind) for node in nodes))
        if more == behind:
            return behind
        behind = more


def _behind(node: ast.AST, parents: Mapping[ast.AST, ast.AST], functions: frozenset[str]) -> bool:
    above = parents.get(node)
    while above is not None:
        if isinstance(above, ast.Call) and _is_door(above) and node is not above.func:
            return True
        if isinstance(above, ast.FunctionDef) and above.name in functions:
            return True
        node, above = above, parents.get(above)
    return False


def _is_door(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return (receiver(call.func), name) in {
        ("doors", "take"),
        ("caller", "persist"),
        ("self", "_persist"),
        ("self", "persist"),
    }


def _io(call: ast.Call) -> str:
    """What the call does to the world, if anything."""
    if isinstance(call.func, ast.Name):
        return "open" if call.func.id == "open" and _writes(call) else ""
    if not isinstance(call.func, ast.Attribute):
        return ""
    owner, name = receiver(call.func), call.func.attr
    found = (
        name in MODULES.get(owner, ())
        or (name in METHODS and owner not in ("os", "self", "store"))
        or (name in REDIS and owner in CLIENTS)
        or (name == "open" and _writes(call))
        or (name == "write" and owner in ("log", "file", "stdin", "buffer"))
        or (name == "replace" and len(call.args) == 1 and not call.keywords)
    )
    return ast.unparse(call.func) if found else ""


def _writes(call: ast.Call) -> bool:
    words = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return any(set(mode) & set("wax+") and len(mode) <= 3 for mode in modes)


def qualified(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> str:
    names: list[str] = []
    above = parents.get(node)
    while above is not None:
        if isinstance(above, ast.FunctionDef | ast.ClassDef):
            names.append(above.name)
        above = parents.get(above)
    return ".".join(reversed(names))
