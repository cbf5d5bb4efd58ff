"""No call of the product can block for ever: each has a timeout, or a reason not to need one."""

import ast
from collections.abc import Iterator

from tests.faults.crash_points.points import receiver
from tests.faults.crash_points.unguarded_io import qualified
from tests.source_code import files, nodes_of, parents_of, tree_of

ALLOWED = {
    "learner/publication/publish_thread.py:PublishThread._next": "its own thread, idle until something is handed over",
    "learner/publication/announcer.py:Announcer.run": "its own thread, idle until something is handed over",
    "learner/publication/weight_broadcast.py:WeightBroadcast.wait": "`PublishThread.wait` has a deadline of its own",
    "learner/ranks/team.py:Team._pass_on": "a thread that is idle until the rank is asked to end",
    "learner/leader.py:Leader._orders": "likewise; and `BackgroundSaver.wait` has one",
    "learner/leader.py:Leader.publishes": "likewise",
    "learner/leader.py:Leader.finish": "likewise",
    "learner/leader.py:Leader._settle_last": "likewise",
    "learner/leader.py:Leader._commit_all": "`BackgroundSaver.wait` has a deadline",
    "learner/training_loop.py:TrainingLoop.run": "`BackgroundSaver.wait` has a deadline of its own",
    "learner/recovery/state_files.py:in_threads": "threads whose requests have the store's deadline",
    "workers/shutdown.py:ShutdownThread.run": "a thread that is idle until the worker is asked to leave",
    "echo_queue/launch/signals.py:_run_actions": "a thread that is idle until a signal comes",
    "workers/environments/channel.py:Channel.receive": "its socket does not block",
    "workers/environments/child.py:serve": "says to the worker that it is ready, or why not, and ends with it",
    "workers/environments/child.py:Server.run": "the environment: idle between questions, and killed with its worker",
    "workers/environments/pipe.py:Pipe._exactly": "likewise",
    "workers/environments/child.py:Server._begin": "the worker takes it, or has ended",
    "workers/environments/child.py:Server._cancel": "likewise",
    "workers/environments/child.py:Server._tell": "likewise",
    "workers/environments/child.py:Server": "likewise",
    "workers/environments/function.py:Functions": "its tasks are over, and the worker limits the call",
    "workers/environments/judge.py:JudgeFunction": "likewise",
    "workers/environments/scorer.py:Scorer._turn": "its socket does not block",
    "workers/environments/keeper.py:_kept": "a process that is idle until the environment or the worker ends",
    "workers/environments/keeper.py:_ended": "it does not wait",
    "workers/environments/verifiers.py:Conversation._run_to_turn": "in the scorer's child, which its parent limits",
    "workers/environments/verifiers.py:Conversation._score": "likewise; its rollout is over",
    "workers/weights/peers/server.py:PeerServer._accept": "its listener has a timeout",
    "workers/lease_keeper.py:LeaseKeeper._renew": "it does not wait",
    "workers/weights/peers/server.py:PeerServer._answer": "it does not wait",
    "workers/weights/peers/http1.py:Wire.head": "its socket has a timeout of the kernel's, set right before",
    "workers/weights/peers/http1.py:Wire.receive": "likewise",
    "workers/weights/peers/http1.py:Wire.ended": "it does not wait",
    "echo_queue/connections/storage/object_store.py:ObjectStore.download_folder": "parts of it, each with a deadline",
    "echo_queue/fleet/invitation/machine.py:_greets": "its socket has the timeout with which it was made",
    "echo_queue/weights/reader.py:fetch_parts": "parts of it, each with the store's deadline",
    "echo_queue/weights/part_makers.py:_RouteMaking._results": "likewise",
}
"""File and function → why a call in it may have no timeout of its own."""

BARE = ("wait", "join", "get", "result", "communicate", "accept")
"""Block for ever when called without any argument."""


def test_every_blocking_call_has_a_timeout() -> None:
    found = [call for file in files() for call in blocking(file)]
    assert [what for place, what in found if place not in ALLOWED] == []
    assert sorted(set(ALLOWED) - {place for place, _ in found}) == [], "what is excused here is gone"


def blocking(file: str) -> Iterator[tuple[str, str]]:
    tree = tree_of(file)
    parents = parents_of(tree)
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and _blocks(node):
            place = f"{file}:{qualified(node, parents)}"
            yield place, f"{place} (line {node.lineno}): {ast.unparse(node)}"


def _blocks(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    named = {keyword.arg for keyword in call.keywords}
    timed = any(word and "timeout" in word for word in named)
    last = ast.unparse(call.args[-1]) if call.args else ""
    match name:
        case _ if name in BARE and isinstance(call.func, ast.Attribute):
            answer = not call.args and not timed
        case "wait_for":
            answer = len(call.args) < 2 and not timed
        case "acquire":
            answer = not timed
        case "run" | "check_call" | "check_output" if receiver(call.func) == "subprocess":
            answer = not timed
        case "flock" | "lockf":
            answer = "LOCK_NB" not in last
        case "recv" | "recvfrom" | "recv_into":
            answer = True
        case "receive" | "send" if receiver(call.func) == "pipe":
            answer = True
        case "create_connection" | "urlopen":
            answer = not timed
        case "Redis" | "from_url" if receiver(call.func) in ("redis", "?"):
            answer = "socket_timeout" not in named and None not in named
        case "poll":
            answer = receiver(call.func) == "poll" and not call.args
        case "waitpid" | "pause" | "select":
            answer = receiver(call.func) in ("os", "signal", "select")
        case _:
            answer = False
    return answer
