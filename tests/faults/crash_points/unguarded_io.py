"""A search for places that write, send or spawn without passing a failpoint, and the reasons why they may.

A call is behind a failpoint if it stands in what is given to one (a lambda, a `partial`, the function itself), or in a
function of the same file all of whose uses stand there. Reads of files, and folders that may exist already, change
nothing that a crash could leave in between.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tests.faults.crash_points.points import receiver
from tests.source_code import PRODUCT, files, nodes_of, parents_of, tree_of

ALLOWED: Mapping[str, str] = {
    "echo_queue/queue/library/__init__.py:load": "called at the failpoint `install`, and inside the retry loop",
    "echo_queue/connections/connect.py:_open_redis": "a ping, which changes nothing",
    "echo_queue/connections/redis_check.py:_greeting": "asks the server what it is",
    "echo_queue/launch/servers/redis_server.py:RedisServer.probe": "a ping, which changes nothing",
    "echo_queue/launch/servers/server_process.py:ServerProcess.launch": "lock and log, around the failpoint",
    "echo_queue/file_lock.py:is_locked": "tries a lock and lets it go at once",
    "echo_queue/launch/log_file.py:keep_short": "a log",
    "echo_queue/connections/storage/object_store.py:ObjectStore.download_folder": "a folder that no program reads",
    "echo_queue/connections/storage/object_store.py:ObjectStore._delete": "called at the failpoint `delete`",
    "echo_queue/connections/storage/object_store.py:ObjectStore._delete_together": "likewise",
    "echo_queue/connections/storage/client.py:_loader": "what botocore knows of services, in memory",
    "echo_queue/weights/signatures.py:_make": "its temporary file, which no program reads",
    "echo_queue/reporting/metrics.py:MetricsLog.__init__": "opens the log; what is written passes a failpoint",
    "echo_queue/reporting/plots/picture.py:_svg": "into memory",
    "echo_queue/reporting/html.py:write": "a report for people, made again at any time",
    "echo_queue/reporting/tensorboard.py:write": "likewise",
    "echo_queue/documents.py:encode": "into memory",
    "echo_queue/evaluation/answers_file.py:AnswersFile": "a command's own file: half of a last line is cut off",
    "echo_queue/cli/documents.py:schemas": "a class, in memory",
    "echo_queue/cli/output.py:print_json": "the terminal",
    "echo_queue/cli/inspect/metrics.py:print_once": "likewise",
    "echo_queue/cli/inspect/scrape_server.py:Handler": "answers a scrape, and keeps nothing",
    "echo_queue/cli/inspect/weights.py:fetch": "its temporary file, which no program reads",
    "echo_queue/launch/streams.py:_lead_nowhere": "the terminal, or what stands in its place",
    "echo_queue/launch/streams.py:_made": "likewise",
    "echo_queue/launch/streams.py:_File": "likewise",
    "echo_queue/cli/plan/fleet_plan.py:_write": "a pools file or a plot for people, made again at any time",
    "echo_queue/fleet/drivers/command.py:CommandDriver._run": "asks the user's commands, or is behind the failpoints",
    "echo_queue/fleet/drivers/local.py:LocalDriver.start": "the lock of a name, which `start machine` fills",
    "echo_queue/fleet/drivers/local.py:_locked": "tries a lock",
    "echo_queue/fleet/drivers/local.py:spawn": "what `LocalDriver.start` calls at the failpoint `start machine`",
    "echo_queue/cli/init/init.py:_fitting": "its temporary folder, which no program reads",
    "echo_queue/cli/init/init.py:_write": "files for a person, who sees whether they are whole",
    "echo_queue/cli/run/config.py:_directory_problems": "tries whether the directory can be written",
    "echo_queue/launch/roles.py:become": "becomes the role",
    "echo_queue/launch/liveness.py:LivenessFile": "shows that a process lives; it ends with the process",
    "echo_queue/launch/guard.py:_signal": "the guard: it has no state, and ends what it was told of",
    "echo_queue/launch/guard.py:_lives": "asks whether a process lives",
    "echo_queue/launch/supervisor.py:Supervised.start": "a line in the role's log",
    "echo_queue/launch/supervisor.py:spawn": "what `Supervised.start` calls at the failpoint `spawn role`",
    "echo_queue/launch/supervisor.py:lock": "waits for the lock; what is noted in it passes a failpoint",
    "echo_queue/launch/reap.py:lives": "asks whether a process lives",
    "echo_queue/fleet/invitation/machine.py:gpus": "asks the driver which GPUs there are",
    "echo_queue/fleet/invitation/machine.py:store_problems": "connects, and sends nothing",
    "echo_queue/fleet/invitation/machine.py:_greets": "likewise",
    "workers/engines/transformers/engine.py:TransformersEngine.step": "rows of tensors in memory",
    "workers/engines/http/checkpoint_files.py:CheckpointFiles": "read at `load weights`; the next one removes it",
    "workers/engines/http/streams.py:Streams": "asks the server, which keeps nothing",
    "workers/engines/vllm/setup.py:_configuration": "a configuration in memory",
    "workers/environments/child.py:serve": "the environment has no state; what it says first passes `hear scorer`",
    "workers/environments/child.py:Server": "the environment has no state; its answers pass `hear scorer`",
    "workers/environments/channel.py:Channel": "the frames of the failpoints `ask scorer` and `hear scorer`",
    "workers/environments/forks.py:prepare": "what forks of the environment inherit",
    "workers/environments/keeper.py:keep": "the keeper: it has no state, and ends what an environment has started",
    "workers/environments/keeper.py:_kept": "likewise",
    "workers/environments/keeper.py:_ended": "likewise",
    "workers/environments/keeper.py:_end_as": "likewise",
    "workers/environments/process.py:EnvironmentProcess.cancel": "the environment keeps nothing of a call",
    "workers/environments/scorer.py:Scorer.wake": "wakes another thread of this process",
    "workers/environments/scorer.py:Scorer._turn": "the rest of a frame of the failpoint `ask scorer`",
    "workers/environments/verifiers.py:Conversation": "tasks of the scorer's own event loop",
    "workers/environments/verifiers.py:TurnClient": "likewise, and what waits between them",
    "workers/environments/function.py:Functions": "tasks of an event loop in the environment, which has no state",
    "workers/environments/judge.py:JudgeFunction": "likewise",
    "workers/environments/pipe.py:Pipe": "the frames of the failpoints `ask scorer` and `hear scorer`",
    "workers/weights/cache/part_file.py:PartFile": "a part of a part cache, which ends with its process",
    "workers/weights/cache/part_cache.py:PartCache.close": "its own folder, which the next worker sweeps",
    "workers/weights/cache/cache_folder.py:lock": "tries a lock, which ends with the process",
    "workers/weights/cache/cache_folder.py:remove_dead": "what a dead worker left, which the next worker sweeps",
    "workers/weights/cache/cache_folder.py:remove": "likewise",
    "workers/weights/cache/cache_folder.py:wipe": "the parts in a folder that is this process's own, or a dead one's",
    "workers/weights/folder.py:SharedFolder": "copies of what the store holds, which count by their digests alone",
    "workers/weights/folder.py:ClaimingStore._share": "shows that it gets on",
    "workers/weights/peers/server.py:PeerServer": "answers peers with what was verified, and keeps nothing",
    "workers/weights/peers/http1.py:Wire": "what peers say to each other, of which nothing lasts",
    "workers/weights/peers/peer_source.py:PeerSource": "reads a peer, into a part cache that ends with the process",
    "workers/weights/cache/sources.py:StoreSource.chunks": "writes into a part cache that ends with the process",
    "learner/base_model/__init__.py:make": "the folder of its partial rollouts, removed at the end",
    "learner/base_model/build.py:build": "its temporary folder, at the failpoint `build base`",
    "learner/model/activations.py:_contexts": "tensors in memory",
    "learner/model/head.py:_PiecewiseScores.forward": "tensors in memory",
    "learner/model/policy.py:Policy.save_pretrained": "called at the failpoint `write model`",
    "learner/model/lora/frozen_base.py:FrozenBase.save_adapters": "likewise",
    "learner/model/lora/merged_linear.py:MergedLinear.forward": "tensors in memory",
    "learner/model/stored_tensors.py:stack_experts": "a part of a name is exchanged",
    "learner/export/__main__.py:export": "removes what an export has made beside its folder",
    "learner/export/exporter.py:Exporter._remove_old": "removes old exports, which the next export would remove",
    "learner/export/exporter.py:Exporter._link_best": "a link that no program reads before it is renamed",
    "learner/export/model_folder.py:put_in_place": "removes an old folder, which no program reads any more",
    "learner/export/model_folder.py:copy_model": "called at the failpoint `write export`",
    "learner/export/model_folder.py:add_companions": "called at the failpoints `write export` and `write tokenizer`",
    "learner/export/model_folder.py:write_version": "called at the failpoint `write export`",
    "learner/export/model_folder.py:_save": "called at the failpoint `write export`",
    "echo_queue/models/exported.py:Mark.write": "likewise",
    "echo_queue/cli/inspect/export.py:export": "removes what it has fetched, where the version cannot be exported",
    "echo_queue/cli/inspect/export.py:_write_card": "a file beside the model, which the next export removes",
    "learner/export/__main__.py:_pushed": "takes the steps `make repository` and `push model`",
    "learner/leader.py:export": "removes an old temporary folder, which no program reads",
    "learner/ranks/launcher.py:end_with_launcher": "waits for the launcher's end, and reads nothing",
    "learner/ranks/launcher.py:start": "a listener, which ends with the process",
    "learner/ranks/order.py:send": "a message between ranks, at the failpoint `send decision`",
    "learner/ranks/team.py:Team": "messages between ranks, which end with them; what lasts of them is counted in steps",
}
"""File and function (or class) → why what it does outside of a failpoint does not matter."""

MODULES: Mapping[str, tuple[str, ...]] = {
    "os": (
        *("getpid", "getppid", "getuid", "getenv", "access", "stat", "listdir", "scandir", "cpu_count", "fspath"),
        "sched_getaffinity",
        *("urandom", "_exit", "fstat", "pipe", "set_blocking", "waitid", "waitstatus_to_exitcode"),
    ),
    "shutil": ("which", "disk_usage"),
    "subprocess": ("TimeoutExpired",),
    "socket": ("socket", "socketpair", "gethostname", "getaddrinfo"),
    "signal": ("signal", "Signals", "pthread_sigmask", "getsignal"),
    "fcntl": (),
    "tempfile": ("gettempdir",),
    "safetensors.torch": ("load", "load_file", "save"),
}
"""Modules whose every function is an I/O call, but for these."""
CLIENTS = ("client", "redis", "s3", "pipe", "connection", "broker")
"""The names of clients of Redis and S3 and of pipelines, also as in `broker_client` or `self._client`."""
CLIENT_READS = (
    *("pipeline", "register_script", "close", "fileno", "get_connection_kwargs"),  # nothing is sent
    *("fcall_ro", "function_list", "get", "mget", "exists", "ttl", "pttl", "type", "scan_iter", "info", "wait"),
    *("hget", "hmget", "hgetall", "hlen", "hscan_iter", "hexists", "llen", "lrange", "smembers", "sismember", "scard"),
    *("xlen", "xrange", "xrevrange", "xread", "xpending", "xpending_range", "xinfo_groups", "xinfo_stream"),
    *("zcard", "zrange", "zscore", "zrangebyscore", "config_get", "acl_whoami", "acl_users", "time", "client_info"),
    *("get_object", "head_object", "head_bucket", "list_objects_v2", "get_paginator"),
)
"""Reads of such a client; every other method is an I/O call."""
PATHS = ("write_text", "write_bytes", "rename", "unlink", "touch", "symlink_to", "hardlink_to", "rmdir")
CELERY = ("apply_async", "delay")
METHODS = (*PATHS, *CELERY, "flush", "truncate", "download_file")
WRITERS = ("save", "copy", "send", "write", "dump", "upload", "put_", "create_", "delete_")
"""The beginnings of the names of foreign functions that write or send, in any module."""
NO_WRITERS = ("dumps", "copy_", "copyto", "create_dataset", "write_atomically")
"""Functions that write to memory only, or that pass failpoints themselves."""
OWN = ("self", "store", "checkpoint", "metrics", "shards", "tensorboard", "report", "results")
"""The packages whose code is inspected where it is defined."""
FAILPOINTS = {("failpoints", "step"), ("caller", "persist"), ("self", "_persist"), ("self", "persist")}


@dataclass(frozen=True)
class IoCall:
    """Something that writes, sends or spawns. `place`: file and qualified name of the function."""

    place: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.place} (line {self.line}): {self.what}"


def unseen() -> list[IoCall]:
    """Returns the I/O calls that pass no failpoint and that no reason excuses."""
    return [io_call for io_call in _all() if not any(_covers(allowed, io_call.place) for allowed in ALLOWED)]


def idle_reasons() -> list[str]:
    """Entries of `ALLOWED` that excuse nothing."""
    io_calls = _all()
    return [allowed for allowed in ALLOWED if not any(_covers(allowed, io_call.place) for io_call in io_calls)]


def _covers(allowed: str, place: str) -> bool:
    return place == allowed or place.startswith(f"{allowed}.")


@cache
def _all() -> tuple[IoCall, ...]:
    return tuple(io_call for file in files() for io_call in _io_calls(file))


def _io_calls(file: str) -> Iterator[IoCall]:
    return (IoCall(f"{file}:{io_call.place}", io_call.line, io_call.what) for io_call in io_calls_of(tree_of(file)))


def io_calls_of(tree: ast.Module) -> Iterator[IoCall]:
    """Yields the I/O calls of one file that pass no failpoint; their places lack the file's name."""
    parents = parents_of(tree)
    behind, imported = _functions_behind_failpoints(tree, parents), _imported(tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and _is_act(node, imported) and not _behind(node, parents, behind):
            yield IoCall(qualified(node, parents), node.lineno, ast.unparse(node.func))


def _imported(tree: ast.Module) -> Mapping[str, str]:
    """Name in this file → what it stands for, by its full name."""
    names: dict[str, str] = {}
    for node in nodes_of(tree):
        match node:
            case ast.Import(names=modules):
                names |= {(one.asname or one.name).partition(".")[0]: one.name for one in modules if one.asname}
                names |= {one.name.partition(".")[0]: one.name.partition(".")[0] for one in modules if not one.asname}
            case ast.ImportFrom(module=str(module), names=parts):
                names |= {one.asname or one.name: f"{module}.{one.name}" for one in parts}
    return names


def _functions_behind_failpoints(tree: ast.Module, parents: Mapping[ast.AST, ast.AST]) -> frozenset[str]:
    """Names of functions that are used in this file, and only behind failpoints."""
    defined = {node.name for node in nodes_of(tree) if isinstance(node, ast.FunctionDef)}
    uses: dict[str, list[ast.AST]] = {}
    for node in nodes_of(tree):
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
        if isinstance(above, ast.Call) and _is_failpoint(above) and node is not above.func:
            return True
        if isinstance(above, ast.FunctionDef) and above.name in functions:
            return True
        node, above = above, parents.get(above)
    return False


def _is_failpoint(call: ast.Call) -> bool:
    return (receiver(call.func), _last(call.func)) in FAILPOINTS


def _is_act(call: ast.Call, imported: Mapping[str, str]) -> bool:
    """Returns whether the call changes anything outside the process."""
    full, owner, name = _full_name(call.func, imported), receiver(call.func), _last(call.func)
    module, _, name = full.rpartition(".") if full else ("", "", name)
    if module.partition(".")[0] in PRODUCT:
        return False
    if module in MODULES:
        return name not in MODULES[module]
    if not module and owner.rpartition("_")[2] in CLIENTS and name not in CLIENT_READS:
        return True
    return (
        (name == "open" and _writes(call))
        or (name == "replace" and owner != "" and len(call.args) == 1 and not call.keywords)
        or (owner not in OWN and _by_name(call, name))
    )


def _by_name(call: ast.Call, name: str) -> bool:
    if name in NO_WRITERS or (name.startswith("copy") and not call.args):  # of what lies in memory
        return False
    return name in METHODS or name.startswith(WRITERS)


def _full_name(function: ast.expr, imported: Mapping[str, str]) -> str:
    """`os.replace`, however it was imported; empty if it is no imported name."""
    match function:
        case ast.Name(id=name):
            return imported.get(name, "")
        case ast.Attribute(value=value, attr=name):
            before = _full_name(value, imported)
            return f"{before}.{name}" if before else ""
    return ""


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


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
